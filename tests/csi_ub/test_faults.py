"""Every fault of reference/csi.md section 5 and the test of what is right instead; those without a home are here.

Case 50 (SELinux) is a word in the CSIDriver object: tests/packaging/chart/test_driver.py. What needs numbers is
measured by ``bench/csi``; what needs long histories is judged by ``make consistency``.
"""

import re
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import Driver, refused

FAULTS = {
    1: "test_the_tenth_identical_call_changes_nothing",
    2: "test_unpublish_of_what_is_not_there_is_done_already",
    3: "test_a_dead_client_is_seen_replaced_and_taken_away",
    4: "test_mounts_survive_the_driver_and_its_successor_knows_them",
    5: "test_publish_without_a_staged_volume_never_binds_the_empty_folder",
    7: "test_calls_that_cross_end_in_a_state_that_the_last_one_decides",
    9: "test_unstage_of_a_volume_in_use_is_refused_and_harms_nobody",
    10: "test_20_pods_at_once_get_the_same_volume",
    11: "test_a_read_only_volume_cannot_be_written_and_others_still_can",
    12: "test_the_same_target_with_other_arguments_is_refused_and_stays",
    13: "test_a_single_writer_gets_one_target_only",
    15: "test_unpublish_removes_the_target_and_only_that",
    16: "test_long_target_paths_work",
    18: "test_ids_that_we_never_gave_reach_no_file",
    19: "test_mounts_that_pods_would_not_see_are_refused",
    21: "test_data_daemons_outlive_the_driver",
    22: "test_a_repeated_publish_needs_nobody_but_this_node",
    23: "test_one_name_from_32_callers_and_two_drivers_is_one_volume",
    25: "test_the_same_name_of_another_size_is_refused",
    26: "test_impossible_sizes_are_out_of_range",
    28: "test_expansion_never_shrinks",
    29: "test_expansion_never_shrinks",
    30: "test_a_volume_in_use_cannot_be_deleted",
    31: "test_a_clone_lives_on_when_its_source_is_deleted",
    33: "test_a_restored_snapshot_is_the_content_of_its_moment",
    34: "test_a_source_that_is_missing_or_too_large_is_refused",
    35: "test_a_volume_that_was_not_finished_is_swept_out_at_the_next_start",
    37: "test_capacity_answers_for_the_class_and_the_place_asked_for",
    38: "test_a_quota_holds_and_grows_while_the_volume_is_in_use",
    39: "test_a_volume_goes_there_and_back_with_all_its_files_and_an_old_persistent_volume",
    40: "test_a_publish_that_fails_leaves_the_volume_and_its_files",
    41: "test_one_name_asked_for_in_two_pools_at_once_is_one_volume",
    42: "test_no_secret_reaches_the_log_or_an_error",
    43: "test_a_hung_client_holds_up_nobody_else",
    44: "test_stats_are_for_mounted_volumes_only",
    46: "test_a_socket_left_by_a_killed_driver_is_taken_over",
    47: "test_probe_says_when_a_pool_has_gone",
    49: "test_a_mount_group_owns_the_top_folder_and_what_is_made_in_it",
    51: "test_three_nodes_see_each_write_at_once_and_share_locks",
    52: "test_open_files_go_on_when_a_replica_dies_and_it_catches_up_when_it_returns",
    53: "test_a_lost_node_is_shut_out_before_another_gets_its_volume",
    54: "test_what_a_pod_may_say_about_its_model_is_an_allow_list",
}


def test_every_fault_has_its_test() -> None:
    there = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert sorted(set(FAULTS.values()) - there) == []


@pytest.mark.kernel
def test_a_publish_that_fails_leaves_the_volume_and_its_files(driver: Driver) -> None:
    volume = driver.create()
    (driver.stage(volume) / "file").write_text("stays")
    target = driver.target(volume)
    target.parent.mkdir(parents=True)
    target.write_text("somebody else's")
    for _ in range(2):
        with refused(grpc.StatusCode.ALREADY_EXISTS, naming=str(target)):
            driver.publish(volume)
    known = driver.controller.ControllerGetVolume(csi.ControllerGetVolumeRequest(volume_id=volume.volume_id))
    assert known.volume.volume_id == volume.volume_id
    assert (driver.staging(volume) / "file").read_text() == "stays"
    assert target.read_text() == "somebody else's"
    target.unlink()
    assert (driver.publish(volume) / "file").read_text() == "stays"
