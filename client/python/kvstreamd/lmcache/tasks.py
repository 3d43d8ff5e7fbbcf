"""One submission of LMCache's, and what became of its objects.

Thread rule: made by any thread, then its lane's alone; `done` is called once, by whichever ends it.
Ownership: LMCache's memory is touched only before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvstreamd.lmcache.names import ObjectName

# Whether all is well, why not, and what became of each object.
Done = Callable[[bool, str, list[bool]], None]


class Task:
    """Objects to look up, to load, to store or to delete; those without a name fail. `views`: the
    memory of each to load or to store."""

    def __init__(self, names: Sequence[ObjectName | None], views: Sequence[memoryview],
                 done: Done):
        self.names = names
        self.views = views
        self.results = [False] * len(names)
        self.error = ""
        self.over = False
        # Objects that are not settled.
        self.left = len(names)
        self._done = done

    def settle(self, index: int, good: bool, error: str = "") -> None:
        """What became of one object; the last one ends the task. Nothing once it is over."""
        if self.over:
            return
        self.results[index] = good
        self.error = self.error or ("" if good else error)
        self.left -= 1
        if not self.left:
            self.finish(all(self.results))

    def fail(self, error: str) -> None:
        """Ends it: what is not settled has failed."""
        self.error = error
        self.finish(False)

    def finish(self, good: bool) -> None:
        """Ends it. Idempotent."""
        if self.over:
            return
        self.over = True
        self.views = ()
        self._done(good, "" if good else self.error or "failed", self.results)
