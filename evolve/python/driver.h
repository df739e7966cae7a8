// The Python text that an interpreter runs (python -I -B -c TEXT) to serve a reference: it reads frames (four bytes
// of length, little-endian, then JSON) from descriptor 3, finds tensors in the shared memory behind descriptor 4 and
// writes frames back. Its other end is PythonReference, where both kinds of message are described.
#pragma once

namespace niche::evolve::python {

extern const char* const kDriver;

}  // namespace niche::evolve::python
