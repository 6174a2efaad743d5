"""sampled_kernels: of kernels that go wrong (or look wrong) in one way, the first run always; those much like one are `long`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.measure.wrong_kernels import Candidate

ALIKE = {
    # wrong
    "one_percent_off": "a_thousandth_off_in_one_element",
    "wrong_only_at_one_row": "wrong_only_in_the_last_row",
    "rounds_to_half": "truncates_to_bfloat16",
    "copies_its_input": "all_zeros",
    "softmax_over_the_wrong_axis": "sums_the_wrong_axis",
    "transposed": "takes_one_size_for_another",
    "one_row_too_far": "swaps_two_rows",
    "does_nothing_for_truth_values": "does_nothing",
    "does_nothing_to_much": "does_nothing",
    "writes_behind_its_input": "writes_behind_its_output",
    "asks_to_exit": "exits_the_process",
    "raises_only_when_large": "raises",
    "wrong_and_prints": "a_thousandth_off_in_one_element",
    # honest
    "noisy_times": "is_sometimes_ten_times_as_slow",
    "becomes_faster_with_use": "takes_long_over_its_first_call",
    "takes_five_milliseconds": "slow",
    "takes_a_millisecond_of_work": "slow",
    "warns": "prints_much",
    "raises_and_catches": "collects_garbage",
    "sums_with_a_correction": "sums_in_a_tree",
    "goes_element_by_element": "works_backwards",
    "writes_its_output_twice": "poisons_its_output_first",
    "works_in_blocks": "sums_in_a_tree",
    "multiplies_the_other_way_round": "rounds_differently_each_time",
    "scales_before_it_squares": "works_in_double",
    "multiplies_in_place": "right_in_place",
    "works_in_threads": "keeps_a_pool_of_threads",
    "counts_its_calls": "uses_a_context_variable",
    "keeps_a_table_for_each_shape": "keeps_its_scratch_memory",
    "goes_through_a_copy_in_another_order": "needs_contiguous_operands",
    # hostile
    "raises_keyboard_interrupt": "raises_system_exit_zero",
    "leaves_a_child_behind": "leaves_a_daemon_behind",
    "changes_its_output_a_little_later": "writes_its_output_a_little_later",
    "works_in_a_profile_function": "works_in_a_trace_function",
    "replaces_what_copies_its_output": "replaces_what_copies_its_output_for_a_moment",
    "remembers_by_the_sum": "remembers_by_a_sample_of_the_values",
    "remembers_by_address_and_size": "remembers_by_the_whole_content",
    "replaces_the_clock": "replaces_the_clock_where_it_is_read",
    "replaces_the_watch": "replaces_the_code_of_the_watch",
    "replaces_what_it_says_of_its_times": "replaces_what_it_says_of_its_times_for_a_moment",
    "gives_its_output_another_shape": "gives_its_output_other_strides",
    "returns_an_array_of_its_own": "gives_a_lazy_output",
    "gives_a_constant": "gives_nan",
    "slows_the_clock_in_machine_code": "slows_the_clock_by_half",
    "replaces_a_number_of_the_bench": "replaces_the_comparison",
}
"""long -> always, which is the harder of the two to judge"""


def sampled(candidates: Sequence[Candidate]) -> list[Any]:
    """The candidates as parameters; those that are much like another one of them are `long`."""
    names = {c.name for c in candidates}
    assert all(ALIKE[n] in names and ALIKE[n] not in ALIKE for n in names if n in ALIKE)
    return [pytest.param(c, id=c.name, marks=pytest.mark.long if c.name in ALIKE else ()) for c in candidates]
