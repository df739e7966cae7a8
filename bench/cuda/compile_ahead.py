"""Candidates compiled by forked processes, before CUDA is touched in this one: the cubins come back through the cache
directory, so that what a child compiled costs the parent a look-up."""
import multiprocessing

from niche_device import NicheError

_niche = None  # a child's, by fork: the library's handle cannot be sent


def _compile(ident):
    try:
        return ident, _niche.compile(ident)
    except NicheError as e:
        return ident, {"error": str(e)}


def compile_ahead(niche, processes, proposals):
    """The pool, and for each key of `proposals` (lists of Niche.propose) what get()s (id, what compile said) in order."""
    global _niche
    _niche = niche
    pool = multiprocessing.get_context("fork").Pool(processes)
    return pool, {k: [pool.apply_async(_compile, (c["id"],)) for c in found] for k, found in proposals.items()}
