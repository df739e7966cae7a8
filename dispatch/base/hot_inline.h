// NICHE_HOT_INLINE: for the parts of a call that only pay where they are inlined. A compiler judges by the size of the
// caller and by how many callers there are: g++ 12 and 13 left decide() or pack_key() out of line in one program and
// not in the next, at 3 to 4 ns a call.
#pragma once

#if defined(__GNUC__)
#define NICHE_HOT_INLINE [[gnu::always_inline]] inline
#else
#define NICHE_HOT_INLINE inline
#endif
