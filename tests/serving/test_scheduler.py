"""serving/scheduler.py: who computes what in the next step, without a model."""

from __future__ import annotations

import random

from tensor_graphs.serving.pages import Pages
from tensor_graphs.serving.scheduler import Portion, Scheduler, StepTimes, TokenSequence


def scheduler(pages: int = 32, page: int = 4, tokens: int = 16, sequences: int = 4) -> Scheduler:
    return Scheduler(Pages(pages, page), tokens=tokens, sequences=sequences)


def run(s: Scheduler) -> list[Portion]:
    """Compute a step; each sequence whose last token was computed gets another one."""
    portions = s.step()
    last = [portion.sequence for portion in portions if portion.last]
    s.done(portions)
    for sequence in last:
        sequence.tokens.append(len(sequence.tokens))
    return portions


def test_tokens_that_decode_go_first_and_a_prompt_fills_what_is_left() -> None:
    s = scheduler(tokens=10)
    short, long = TokenSequence([1, 2, 3]), TokenSequence(list(range(100, 130)))
    s.add(short)
    s.add(long)
    assert [(p.sequence, p.start, p.count) for p in run(s)] == [(short, 0, 3), (long, 0, 7)]
    assert [(p.sequence, p.start, p.count) for p in run(s)] == [(short, 3, 1), (long, 7, 9)]


def test_a_sequence_joins_and_leaves_while_others_decode() -> None:
    s = scheduler()
    first, second = TokenSequence([1, 2]), TokenSequence([3])
    s.add(first)
    run(s)
    s.add(second)
    assert {p.sequence for p in run(s)} == {first, second}
    s.remove(first)
    assert [p.sequence for p in run(s)] == [second]
    s.remove(second)
    assert not run(s) and s.pages.free == s.pages.count


def test_the_last_to_arrive_gives_its_pages_back_and_comes_again() -> None:
    s = scheduler(pages=6, page=2)
    first, second = TokenSequence([1, 2, 3]), TokenSequence([4, 5, 6])
    s.add(first)
    run(s)
    s.add(second)
    while not s.preemptions:
        run(s)
    assert s.running == [first] and list(s.waiting) == [second] and not second.pages
    s.remove(first)
    length = len(second.tokens)
    while second.missing:
        run(s)
        if len(second.tokens) > length:
            break
    assert second.tokens[:length] == [4, 5, 6, *range(3, length)]


def test_a_shared_prefix_is_computed_once() -> None:
    s = scheduler()
    first = TokenSequence([*range(9), 20])
    s.add(first)
    run(s)
    second = TokenSequence([*range(9), 30])
    s.add(second)
    assert {(p.sequence, p.start) for p in run(s)} == {(first, 10), (second, 8)}
    assert (first.shared, second.shared) == (0, 8)


def test_a_thousand_random_requests_with_cancellations_leak_no_page_and_starve_nobody() -> None:
    draw, s = random.Random(1), scheduler(pages=20, tokens=12)
    ends: dict[TokenSequence, int] = {}
    served = submitted = cancelled = 0
    while submitted < 1000 or ends:
        if submitted < 1000 and draw.random() < 0.5:
            sequence = TokenSequence([draw.randrange(3) for _ in range(draw.randrange(1, 40))])
            ends[sequence] = len(sequence.tokens) + draw.randrange(1, 30)
            s.add(sequence)
            submitted += 1
        if ends and draw.random() < 0.05:
            sequence = draw.choice(list(ends))
            s.remove(sequence)
            del ends[sequence]
            cancelled += 1
        portions = run(s)
        assert sum(p.count for p in portions) <= s.tokens and len(s.running) <= s.sequences
        assert portions or not ends
        for portion in portions:
            sequence = portion.sequence
            assert len(sequence.pages) * 4 - sequence.computed < 4 + portion.count
            if len(sequence.tokens) >= ends[sequence]:
                s.remove(sequence)
                del ends[sequence]
                served += 1
        held = {page for sequence in s.running for page in sequence.pages}
        assert s.pages.free == s.pages.count - len(held)
    assert served + cancelled == 1000 and s.preemptions > 10 and s.pages.free == s.pages.count


def test_a_prefix_that_many_prompts_share_is_computed_once_though_all_come_at_once() -> None:
    s = scheduler(pages=400, page=16, tokens=1024, sequences=17)
    prefix = list(range(512))
    sequences = [TokenSequence([*prefix, 1000 + i]) for i in range(16)]
    for sequence in sequences:
        s.add(sequence)
    other = TokenSequence([7, 8])
    s.add(other)
    assert {portion.sequence for portion in run(s)} == {sequences[0], other}     # one that shares nothing does not wait
    assert sum(portion.count for portion in run(s) if portion.sequence in sequences) == 1 + 15
    assert [sequence.shared for sequence in sequences] == [0] + 15 * [512]


def test_few_slots_of_pages_are_empty() -> None:
    draw = random.Random(0)
    s = scheduler(pages=2000, page=16, tokens=256, sequences=32)
    for _ in range(64):
        s.add(TokenSequence([draw.randrange(10**6) for _ in range(draw.randint(32, 256))]))
    ends = {sequence: len(sequence.tokens) + draw.randint(32, 256) for sequence in s.waiting}
    empty = slots = 0
    while s.running or s.waiting:
        run(s)
        slots += sum(len(sequence.pages) * 16 for sequence in s.running)
        empty += sum(len(sequence.pages) * 16 - sequence.computed for sequence in s.running)
        for sequence in [sequence for sequence in s.running if len(sequence.tokens) >= ends[sequence]]:
            s.remove(sequence)
    assert 0 < empty / slots < 0.04


def simulated(joining: dict[int, int], alone: float, token: float, steps: int) -> tuple[list[float], list[int]]:
    """Return (seconds of each step, tokens of prompts in it) where 16 sequences decode and prompts join. joining: step -> tokens of
    the prompt that comes before it. alone: seconds of a step without prompts; token: of each of their tokens."""
    s, times = scheduler(pages=4000, page=16, tokens=4096, sequences=64), StepTimes()
    for i in range(16):
        s.add(TokenSequence([i]))
    seconds, prompts = list[float](), list[int]()
    for number in range(steps):
        if number in joining:
            s.add(TokenSequence(list(range(1000 * number, 1000 * number + joining[number]))))
        portions = s.step(times.prompts(s.decoding))
        decoding = sum(portion.last and portion.count == 1 for portion in portions)
        prompts.append(sum(portion.count for portion in portions) - decoding)
        seconds.append(alone + token * prompts[-1])
        times.note(decoding, prompts[-1], seconds[-1])
        s.done(portions)
        for portion in portions:
            if portion.last and len(portion.sequence.tokens) - portion.sequence.prompt == 60 and portion.sequence.prompt > 1:
                s.remove(portion.sequence)
            elif portion.last:
                portion.sequence.tokens.append(0)
    return seconds, prompts


def test_a_long_prompt_that_joins_holds_others_up_no_longer_than_three_steps() -> None:
    for alone, token, most in ((0.06, 0.003, 20), (0.06, 0.0001, 600)):
        seconds, prompts = simulated({20: 2000}, alone, token, 300)
        pieces = [count for count in prompts[20:] if count]
        assert sum(pieces) == 2000 and pieces[0] <= StepTimes.FIRST and max(pieces) >= most
        assert max(seconds[20:]) <= 3 * alone


def test_where_prompts_keep_coming_the_slowest_hundredth_of_the_steps_takes_twice_the_median_at_most() -> None:
    draw = random.Random(0)
    joining = {number: draw.randrange(32, 257) for number in range(20, 2000) if draw.random() < 0.1}
    for alone, token in ((0.06, 0.003), (0.06, 0.0005)):
        seconds, prompts = simulated(joining, alone, token, 2000)
        assert sum(prompts[20:]) > 0.9 * sum(joining.values())
        ordered = sorted(seconds[20:])
        assert ordered[len(ordered) * 99 // 100] <= 2 * ordered[len(ordered) // 2]
