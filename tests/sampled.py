"""Tests of which the default run takes a part: of the cases of each every so many-th, 0: none. `make test-long` runs the rest.

A row is here because its test is among the slowest and its cases are alike: what one of them guards, its neighbours guard too.
"""

from __future__ import annotations

EVERY = {
    # rewrites
    "test_both_sides_of_a_rule_agree_within_its_class": 5,
    "test_a_rule_that_holds_in_the_common_case_only_is_refused": 5,
    "test_a_rule_that_is_right_where_its_assumptions_hold_is_admitted": 3,
    "test_a_rule_that_is_wrong_for_a_few_values_is_refused": 3,
    "test_a_right_rule_with_attributes_or_a_condition_is_admitted": 3,
    "test_a_tempting_wrong_rule_is_refused": 2,
    "test_with_one_more_kernel_or_rule_there_are_all_paths_that_there_were_and_none_is_dearer": 3,
    # measure
    "test_a_hostile_kernel_does_not_pass": 3,
    "test_a_kernel_that_does_nothing_passes_for_no_op": 3,
    "test_it_is_refused": 6,
    "test_its_honest_twin_passes": 5,
    "test_a_malformed_reply_is_a_row_and_the_judge_goes_on": 6,
    "test_a_malformed_claim_about_times_is_a_row_and_the_judge_goes_on": 3,
    "test_a_kernel_that_breaks_what_it_shares_with_its_worker_is_a_row_and_the_next_one_passes": 6,
    "test_an_honest_kernel_passes_whatever_is_drawn": 6,
    "test_an_honest_kernel_passes_however_slow_noisy_or_chatty": 4,
    "test_a_kernel_that_is_wrong_on_short_rows_fails_whatever_is_drawn": 3,
    "test_a_kernel_that_is_wrong_somewhere_at_random_does_not_pass": 6,
    "test_a_wrong_kernel_is_stored_as_wrong": 2,
    "test_wrong_kernels_are_never_chosen_though_they_look_fastest": 3,
    "test_a_kernel_that_rounds_to_tf32_computes_the_rounded_product_of_rows_of_any_length": 3,
    "test_each_ends_in_its_own_process_as_a_row": 4,
    "test_nothing_is_lost_when_profilers_and_workers_are_killed": 0,
    "test_workers_that_find_no_quiet_are_made_up_for_as_often_again": 0,
    "test_a_kernel_with_fewer_bits_than_tf32_is_wrong_for_the_rounded_product": 3,
    # choice
    "test_a_graph_of_composites_stays_the_very_graph": 3,
    "test_what_is_written_out_is_recognised_again": 3,
    "test_a_graph_may_ask_the_same_of_two_dims": 3,
    "test_attention_in_any_words_is_one_kernel_that_keeps_no_scores": 3,
    "test_graphs_alike_up_to_names_of_dims_compile_one_after_the_other": 3,
    "test_the_faster_of_two_is_chosen_where_its_row_is_faster_than_the_words": 2,
    "test_each_edit_leads_to_a_new_verdict_before_the_next_use_and_a_comment_to_none": 0,
    "test_each_of_them_is_judged_in_its_place_and_timed": 0,
    "test_a_kernel_on_a_models_shapes_has_its_verdict_in_seconds": 0,
    "test_two_processes_profile_into_one_database": 0,
    "test_gradients_run_as_turns_too": 0,
    # kernels and codegen
    "test_a_kernel_computes_its_op_or_says_why_not": 2,
    "test_a_norm_is_right_for_large_small_and_shifted_rows": 5,
    "test_the_turns_are_the_oracles_at_every_length": 3,
    "test_each_form_is_what_the_oracle_says": 3,
    "test_one_row_and_several_agree_with_the_oracle": 2,
    "test_a_product_is_rounded_once": 3,
    "test_operands_that_lie_anywhere_are_multiplied_one_by_one": 2,
    "test_rows_go_where_the_index_says": 4,
    "test_a_product_is_near_the_exact_one": 5,
    "test_a_window_is_copied_with_its_strides": 3,
    "test_products_of_whatever_there_is": 2,
    "test_texts_compile": 3,
    "test_every_action_keeps_the_meaning_in_the_interpreter_and_in_c": 2,
    # models and frontends
    "test_tokens_and_logits_are_those_of_transformers": 3,
    "test_a_family_with_parts_on_another_device_says_the_same": 3,
    "test_a_row_with_a_mistake_is_refused": 3,
    "test_embeddings_are_those_of_transformers": 3,
    "test_three_turns_are_those_of_transformers_for_the_whole_conversation": 2,
    # language
    "test_what_is_compiled_computes_the_values": 3,
    "test_the_structural_key_is_made_of_the_digests_of_the_canonical_nodes": 3,
    # proof
    "test_an_equal_pair_is_proved_but_where_a_number_meets_a_size": 2,
    "test_a_miss_that_is_too_near_is_never_called_equal": 2,
    "test_a_near_miss_is_refuted_with_a_counterexample": 3,
    "test_an_equal_pair_that_float64_does_not_show_is_never_refuted": 2,
    # the command line, fuzzers
    "test_bf16_weights_take_half_the_memory": 0,
    "test_a_condition_that_a_rule_of_a_module_assumes_may_be_taken_for_granted": 0,
    "test_lines_of_json_are_the_tokens_with_their_log_probabilities_and_then_the_document": 0,
    "test_lines_of_json_are_the_tokens_of_each_turn_and_a_stop_text_ends_an_answer": 0,
    "test_an_installed_backend_is_known_by_its_name_alone": 0,
    "test_the_readme_of_a_new_backend_names_commands_that_work": 0,
    "test_ctrl_c_while_profiling_keeps_every_row_and_the_next_call_goes_on": 0,
    "test_random_graphs_give_the_oracles_values_along_every_path": 2,
    "test_the_random_graphs_hold_every_op": 0,
    "test_the_graphs_hold_every_op_and_what_makes_paths_different": 0,
    "test_the_benchmark_says_how_many_ran": 0,
}
