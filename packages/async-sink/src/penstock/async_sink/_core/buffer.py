"""What waits to be sent: what may leave, what backs off, what waits for its lane or its key."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar

from penstock.async_sink._core.entries import RequestEntryWrapper, total_size_in_bytes
from penstock.async_sink._core.runs import EntryRun, Part, fall_apart
from penstock.async_sink._rate.strategy import GuessesLanes, LaneLimiter

R = TypeVar("R")


class RequestBuffer(Generic[R]):
    """First in, first out; entries that come back take their old place at the head. Keeps the total of bytes.

    Entries of one call may stand in it as a run. Looking at entries one by one makes runs fall apart.
    """

    def __init__(self) -> None:
        self._parts: deque[Part[R]] = deque()
        self._runs = 0
        # Entries of runs beyond the one that each place of `_parts` counts for.
        self._beyond = 0
        self.total_size_in_bytes = 0
        """Bytes of all entries in the buffer."""

    def __len__(self) -> int:
        return len(self._parts) + self._beyond

    def __iter__(self) -> Iterator[RequestEntryWrapper[R]]:
        """Entry by entry; those of runs are made for it, and forgotten."""
        for part in self._parts:
            if isinstance(part, EntryRun):
                yield from part.wrappers()
            else:
                yield part

    @property
    def has_runs(self) -> bool:
        """Whether a part may stand for more than one entry."""
        return self._runs > 0

    @property
    def first(self) -> Part[R]:
        """What stands first: an entry, or a run of them.

        Raises:
            IndexError: the buffer is empty.
        """
        return self._parts[0]

    @property
    def head(self) -> RequestEntryWrapper[R]:
        """The entry that leaves next; a run that it belongs to falls apart.

        Raises:
            IndexError: the buffer is empty.
        """
        first = self._parts[0]
        if not isinstance(first, EntryRun):
            return first
        self._parts.popleft()
        self._runs -= 1
        self._beyond -= first.count - 1
        wrappers = first.wrappers()
        self._parts.extendleft(reversed(wrappers))
        return wrappers[0]

    def add(self, wrapper: RequestEntryWrapper[R]) -> int:
        """Add an entry at the end. Returns how many there are now."""
        parts = self._parts
        parts.append(wrapper)
        self.total_size_in_bytes += wrapper.size_in_bytes
        return len(parts) + self._beyond

    def add_run(self, run: EntryRun[R]) -> None:
        """Add entries at the end."""
        self._parts.append(run)
        self._runs += 1
        self._beyond += run.count - 1
        self.total_size_in_bytes += run.size_in_bytes

    def put_back(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Put entries, given in the order of their numbers, before every entry with a higher number.

        Requests can fail in another order than they were sent in: by the numbers, entries that come back stand in the
        order of writing among themselves too. Only entries that came back earlier can stand before them, so just those
        are looked at.
        """
        if not wrappers:
            return
        parts, last = self._parts, wrappers[-1].number
        ahead: list[RequestEntryWrapper[R]] = []
        while parts and parts[0].number < last:
            ahead.append(self.head)
            parts.popleft()
        returned = merge(ahead, wrappers, key=attrgetter("number")) if ahead else wrappers
        parts.extendleft(reversed(list(returned)))
        self.total_size_in_bytes += total_size_in_bytes(wrappers)

    def take(self, count: int) -> list[RequestEntryWrapper[R]]:
        """Remove that many entries from the head."""
        taken = fall_apart(self.take_parts(count, 0))
        self.total_size_in_bytes -= total_size_in_bytes(taken)
        return taken

    def measure(self, limit: int, room: int, now: float) -> tuple[int, int]:
        """The next batch, by number and bytes: at most so many from the head, with at most so many bytes, but for the
        first one, which fits whatever its size.

        An exact fit is allowed; an entry that still backs off ends it.

        Measuring comes before taking: a rate limiting strategy is asked about the batch that would really leave.
        """
        count = size = 0
        if self._parts:
            first = self._parts[0]
            room = max(room, first.size_of(1) if isinstance(first, EntryRun) else first.size_in_bytes)
        for part in islice(self._parts, limit):
            following = size + part.size_in_bytes
            if following > room or part.not_before > now or count + part.count > limit:
                if isinstance(part, EntryRun):
                    fitting = part.fitting(limit - count, room - size)
                    count += fitting
                    size += part.size_of(fitting)
                break
            count += part.count
            size = following
        return count, size

    def take_parts(self, count: int, size_in_bytes: int) -> list[Part[R]]:
        """Remove that many entries from the head, runs as they are; `size_in_bytes` is their total."""
        self.total_size_in_bytes -= size_in_bytes
        parts, pop = self._parts, self._parts.popleft
        if not self._runs:
            return [pop() for _ in range(count)]
        taken: list[Part[R]] = []
        while count:
            part = parts[0]
            if isinstance(part, EntryRun):
                if part.count > count:
                    self._beyond -= count
                    taken.append(part.split(count))
                    break
                self._runs -= 1
                self._beyond -= part.count - 1
            taken.append(pop())
            count -= part.count
        return taken


class Shares:
    """How much of the buffer each lane and each key holds, and whether one of them may take more.

    A lane or a key may hold less than twice what is free, and always its first entry. This is the dynamic threshold of
    shared-memory switches (Choudhury and Hahne, 1998): one hot lane gets two thirds of the buffer, two get two fifths
    each, and some room is always left for lanes that hold little. Nothing is reserved for a lane that is idle.
    """

    _TIMES_FREE = 2

    def __init__(self) -> None:
        self.held: dict[Hashable, tuple[int, int]] = {}
        """Entries and bytes, by lane or key."""

    def add(self, name: Hashable, entries: int, size_in_bytes: int) -> None:
        """Count entries of a lane or a key in; negative numbers count them out."""
        held_entries, held_bytes = self.held.get(name, (0, 0))
        if held_entries + entries:
            self.held[name] = held_entries + entries, held_bytes + size_in_bytes
        else:
            del self.held[name]

    def allows(self, name: Hashable, free: int, free_bytes: int) -> bool:
        """Whether a lane or a key may hold one entry more, of what is free in the buffer."""
        held = self.held.get(name)
        return held is None or (held[0] < self._TIMES_FREE * free and held[1] < self._TIMES_FREE * free_bytes)


KeyOf = Callable[[R], Hashable]
_Heap = list[tuple[int, RequestEntryWrapper[R]]]


class Backlog(Generic[R]):
    """The buffer of a writer.

    `fresh` is the queue that batches are cut from. Beside it stand entries that back off, by the time at which they may
    leave; entries whose lane has no room, by lane; entries behind another one of their key; and requests that were cut
    in two. None of them holds up what stands in `fresh`.

    What each lane and each key holds is counted from the time at which an entry comes to when it leaves in a batch.
    """

    def __init__(self, limiter: LaneLimiter | None = None, key_of: KeyOf[R] | None = None) -> None:
        self.fresh: RequestBuffer[R] = RequestBuffer()
        self.halves: deque[list[RequestEntryWrapper[R]]] = deque()
        """Requests that leave as they are, before everything else: parts of one that was refused whole."""
        self._limiter = limiter
        self._known_lane_of: Callable[[R], str | None] = lambda entry: None
        if limiter is not None:
            self._known_lane_of = limiter.known_lane_of if isinstance(limiter, GuessesLanes) else limiter.lane_of
        self._key_of = key_of
        self._resting: list[tuple[float, int, RequestEntryWrapper[R]]] = []
        self._parked: dict[str, _Heap[R]] = {}
        self._lanes_at: float | None = None
        self._behind: dict[Hashable, _Heap[R]] = {}
        self._busy: set[Hashable] = set()
        self._aside = 0
        self._aside_bytes = 0
        self._shares = Shares()

    def __len__(self) -> int:
        return len(self.fresh) + self._aside

    def __iter__(self) -> Iterator[RequestEntryWrapper[R]]:
        return iter(sorted(self._all(), key=attrgetter("number")))

    def _all(self) -> Iterator[RequestEntryWrapper[R]]:
        yield from self.fresh
        for half in self.halves:
            yield from half
        for _, _, wrapper in self._resting:
            yield wrapper
        for heaps in (self._parked.values(), self._behind.values()):
            for heap in heaps:
                for _, wrapper in heap:
                    yield wrapper

    @property
    def total_size_in_bytes(self) -> int:
        """Bytes of all entries."""
        return self.fresh.total_size_in_bytes + self._aside_bytes

    @property
    def held_back(self) -> int:
        """Entries that wait for room in their lane, or for another one of their key."""
        return self._aside - len(self._resting) - sum(map(len, self.halves))

    def oldest_written_at(self) -> float | None:
        """When the oldest of the entries that stand first, in their queues, was written; None if none waits.

        Cheap, and safe from another thread: metrics are read there while the loop goes on.
        """
        heaps = [*list(self._parked.values()), *list(self._behind.values())]
        try:
            heads = [heap[0][1] for heap in heaps if heap]
            heads += [resting[0][2] for resting in (self._resting,) if resting]
            written = [wrapper.written_at for wrapper in heads]
            written += [fresh.first.written_at for fresh in (self.fresh,) if len(fresh)]
        except IndexError:
            return None
        return min(written, default=None)

    def heads(self) -> Iterator[tuple[Part[R], str]]:
        """The first of each queue, by number, and what it waits for; empty for what stands in `fresh`."""
        if self.fresh:
            yield self.fresh.first, ""
        for half in self.halves:
            yield half[0], "bisected"
        if self._resting:
            yield min((wrapper for _, _, wrapper in self._resting), key=attrgetter("number")), "back_off"
        for reason, heaps in (("lane", self._parked), ("order", self._behind)):
            for heap in heaps.values():
                yield heap[0][1], reason

    @property
    def is_plain(self) -> bool:
        """Whether a batch is simply the head of `fresh`: neither lanes nor keys matter."""
        if self._parked or self._shares.held or self._key_of is not None:
            return False
        return self._limiter is None or not self._limiter.active

    @property
    def has_shares(self) -> bool:
        """Whether a lane or a key may hold only its share."""
        return self._key_of is not None or (self._limiter is not None and self._limiter.active)

    @property
    def keeps_keys(self) -> bool:
        """Whether entries of one key wait for each other."""
        return self._key_of is not None

    def lane_of(self, entry: R) -> str | None:
        """The lane of an entry; None if it is not known, or lanes do not matter."""
        return self._known_lane_of(entry) if self._limiter is not None and self._limiter.active else None

    def full(self, entry: R, lane: str | None, free: int, free_bytes: int) -> str | None:
        """What has its share of the buffer, `lane` or `key`, so that the entry must wait; None if it need not."""
        if lane is not None and not self._shares.allows(lane, free, free_bytes):
            return "lane"
        if self._key_of is None or (key := self._key_of(entry)) is None:
            return None
        return None if self._shares.allows((key,), free, free_bytes) else "key"

    def is_paced(self, lane: str | None) -> bool:
        """Whether entries of the lane wait for its pace."""
        return lane in self._parked

    def hold(self, wrapper: RequestEntryWrapper[R], entries: int = 1) -> None:
        """Count an entry in the share of its lane and of its key; -1 counts it out."""
        size = entries * wrapper.size_in_bytes
        if wrapper.lane is not None:
            self._shares.add(wrapper.lane, entries, size)
        if self._key_of is not None and (key := self._key_of(wrapper.entry)) is not None:
            self._shares.add((key,), entries, size)

    def release(self, wrapper: RequestEntryWrapper[R]) -> None:
        """An entry leaves the buffer."""
        self.hold(wrapper, -1)

    def fall_apart(self) -> list[RequestEntryWrapper[R]]:
        """All entries one by one, to change what is known of them."""
        self.fresh.put_back(self.fresh.take(len(self.fresh)))
        return list(self)

    def put_back(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Put entries, in the order of their numbers, to the head: they may leave at once."""
        for wrapper in wrappers:
            self.hold(wrapper)
        self.fresh.put_back(wrappers)

    def _set_aside(self, wrapper: RequestEntryWrapper[R]) -> None:
        self._aside += 1
        self._aside_bytes += wrapper.size_in_bytes

    def _take_up(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        self._aside -= len(wrappers)
        self._aside_bytes -= total_size_in_bytes(wrappers)

    def rest(self, wrappers: Iterable[RequestEntryWrapper[R]], until: float) -> None:
        """Let entries back off until that time."""
        for wrapper in wrappers:
            wrapper.not_before = until
            heappush(self._resting, (until, wrapper.number, wrapper))
            self.hold(wrapper)
            self._set_aside(wrapper)

    def rouse(self, now: float) -> int:
        """Put entries whose time has come to the head. Returns how many."""
        resting = self._resting
        if not resting or resting[0][0] > now:
            return 0
        due = []
        while resting and resting[0][0] <= now:
            due.append(heappop(resting)[2])
        self._take_up(due)
        due.sort(key=attrgetter("number"))
        self.fresh.put_back(due)
        return len(due)

    def split(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Queue the two halves of a request as requests of their own."""
        middle = (len(wrappers) + 1) // 2
        for half in (list(wrappers[middle:]), list(wrappers[:middle])):
            if half:
                self.halves.appendleft(half)
                for wrapper in half:
                    self.hold(wrapper)
                    self._set_aside(wrapper)

    def take_half(self, limit: int) -> list[RequestEntryWrapper[R]]:
        """Take the next part of a request that was cut, or as many of its entries as the limit says."""
        half = self.halves.popleft()
        if len(half) > limit:
            self.halves.appendleft(half[limit:])
            half = half[:limit]
        self._take_up(half)
        for wrapper in half:
            self.release(wrapper)
        return half

    def join_halves(self) -> None:
        """Put requests that were cut back to the head, entry by entry."""
        while self.halves:
            self.put_back(self.take_half(len(self.halves[0])))

    def wakes_at(self) -> float | None:
        """When something that waits by time may leave."""
        resting = self._resting[0][0] if self._resting else None
        if self._lanes_at is None or resting is None:
            return resting if self._lanes_at is None else self._lanes_at
        return min(resting, self._lanes_at)

    def lanes_are_due(self, now: float) -> bool:
        """Whether a lane that had no room is to be asked again."""
        return self._lanes_at is not None and now >= self._lanes_at

    def take(self, limit: int, room: int, now: float) -> tuple[list[RequestEntryWrapper[R]], int]:
        """Take entries that have room in their lane, and no other of their key before them: (entries, how many of
        `fresh` were looked at).

        What has no room is set aside for later. The first one fits whatever its size.
        """
        chosen: list[RequestEntryWrapper[R]] = []
        room = self._take_parked(chosen, limit, room, now) if self.lanes_are_due(now) else room
        fresh, limiter, looked_at = self.fresh, self._limiter, 0
        while fresh and len(chosen) < limit and (not chosen or fresh.head.size_in_bytes <= room):
            (wrapper,) = fresh.take(1)
            looked_at += 1
            if not self._reserve_key(wrapper):
                continue
            lane = wrapper.lane
            if lane is None or wrapper.attempts:
                # An entry that comes back may have another lane now.
                lane = self.lane_of(wrapper.entry)
                if lane != wrapper.lane:
                    self.release(wrapper)
                    wrapper.lane = lane
                    self.hold(wrapper)
                if lane is None and limiter is not None and limiter.active:
                    lane = limiter.lane_of(wrapper.entry)
            # Behind what waits already, though a token were left: older entries of a lane go first.
            if (
                limiter is None
                or lane is None
                or (lane not in self._parked and limiter.take(lane, wrapper.size_in_bytes, now))
            ):
                chosen.append(wrapper)
                room -= wrapper.size_in_bytes
            else:
                self._park(lane, wrapper, limiter.ready_at(lane, now))
        for wrapper in chosen:
            self.release(wrapper)
        return chosen, looked_at

    def _park(self, lane: str, wrapper: RequestEntryWrapper[R], ready_at: float) -> None:
        heappush(self._parked.setdefault(lane, []), (wrapper.number, wrapper))
        self._set_aside(wrapper)
        self._lanes_at = ready_at if self._lanes_at is None else min(self._lanes_at, ready_at)

    def _take_parked(self, chosen: list[RequestEntryWrapper[R]], limit: int, room: int, now: float) -> int:
        limiter, parked = self._limiter, self._parked
        assert limiter is not None
        self._lanes_at = None
        full = False
        # The lane whose head has waited longest goes first: a full request does not always leave out the same ones.
        for lane in sorted(parked, key=lambda lane: parked[lane][0][0]):
            heap = parked[lane]
            while heap and not full:
                wrapper = heap[0][1]
                full = len(chosen) >= limit or (bool(chosen) and wrapper.size_in_bytes > room)
                if full or not limiter.take(lane, wrapper.size_in_bytes, now):
                    break
                heappop(heap)
                self._take_up((wrapper,))
                chosen.append(wrapper)
                room -= wrapper.size_in_bytes
            if not heap:
                del parked[lane]
            else:
                when = now if full else limiter.ready_at(lane, now)
                self._lanes_at = when if self._lanes_at is None else min(self._lanes_at, when)
        return room

    def give_back(self, wrappers: list[RequestEntryWrapper[R]]) -> None:
        """Undo `take`: these entries do not leave after all."""
        limiter = self._limiter
        for wrapper in wrappers:
            if wrapper.lane is not None and limiter is not None:
                limiter.give_back(wrapper.lane, wrapper.size_in_bytes)
        wrappers.sort(key=attrgetter("number"))
        self.put_back(wrappers)

    def _reserve_key(self, wrapper: RequestEntryWrapper[R]) -> bool:
        if self._key_of is None or wrapper.holds_key:
            return True
        key = self._key_of(wrapper.entry)
        if key is None:
            return True
        if key in self._busy:
            heappush(self._behind.setdefault(key, []), (wrapper.number, wrapper))
            self._set_aside(wrapper)
            return False
        self._busy.add(key)
        wrapper.holds_key = True
        return True

    def release_keys(self, wrappers: Iterable[RequestEntryWrapper[R]]) -> int:
        """These entries are settled: the next ones of their keys may leave. Returns how many there are."""
        if self._key_of is None:
            return 0
        following: list[RequestEntryWrapper[R]] = []
        for wrapper in wrappers:
            if not wrapper.holds_key:
                continue
            wrapper.holds_key = False
            key = self._key_of(wrapper.entry)
            heap = self._behind.get(key)
            if heap is None:
                self._busy.discard(key)
                continue
            successor = heappop(heap)[1]
            if not heap:
                del self._behind[key]
            successor.holds_key = True
            following.append(successor)
        self._take_up(following)
        following.sort(key=attrgetter("number"))
        self.fresh.put_back(following)
        return len(following)
