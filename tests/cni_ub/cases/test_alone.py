"""Cases of the other files where no agent runs: the executable does the work itself, with the same outcome."""

import pytest

from tests.cni_ub.cases import (
    test_add_is_whole,
    test_around_us,
    test_calls,
    test_check,
    test_del_is_lenient,
    test_ownership,
    test_versions,
)

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def with_agent() -> bool:
    return False


test_h1_del_without_a_namespace = (
    test_del_is_lenient.test_h1_del_without_a_namespace_frees_a_device_whose_pod_still_lives
)
test_h7_del_with_a_torn_record = test_del_is_lenient.test_h7_del_with_a_torn_record
test_h11_a_failed_reset = test_del_is_lenient.test_h11_a_failed_reset_leaves_the_record_and_the_rest_is_done
test_h13_a_failing_ipam = test_add_is_whole.test_h13_a_failing_ipam_undoes_the_add
test_h15_a_driver_that_refuses = test_add_is_whole.test_h15_a_driver_that_refuses_half_way_undoes_the_add
test_h18_a_taken_name = test_add_is_whole.test_h18_a_taken_name_is_refused_with_nothing_done
test_h25_one_document_on_stdout = test_calls.test_h25_one_document_on_stdout_and_logs_elsewhere
test_h26_two_adds_for_one_device = test_ownership.test_h26_two_adds_for_one_device
test_h27_a_late_del = test_ownership.test_h27_a_late_del_does_not_touch_the_next_owner
test_h34_bad_json = test_calls.test_h34_bad_json_is_a_decoding_failure
test_h36_a_wrong_environment = test_calls.test_h36_a_wrong_environment_is_named
test_h38_an_old_host_local = test_calls.test_h38_an_old_host_local_serves_a_new_configuration
test_h39_status = test_calls.test_h39_status_is_quick_and_says_what_is_wrong
test_h40_check_finds_real_drift = test_check.test_h40_check_finds_real_drift
test_h41_version = test_versions.test_h41_version_asks_for_nothing
test_h48_an_add_that_is_killed = test_around_us.test_h48_an_add_that_is_killed_while_ipam_works
test_h50_a_log_that_cannot_be_written = test_around_us.test_h50_a_log_that_cannot_be_written_fails_nothing
test_h51_in_a_chain = test_around_us.test_h51_in_a_chain_the_others_are_left_as_they_were
