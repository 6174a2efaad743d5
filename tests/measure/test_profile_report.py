"""What a report says: in one line per verdict, then what was done, what failed, on what the plan rests, and what is left."""

from __future__ import annotations

from tensor_graphs.measure.queue.profile_report import LEFT, Answered, ProfileReport, Rests, rests_on, what_is_left
from tensor_graphs.paths.fit_terminal import SCREEN_LINES, SCREEN_WIDTH


def test_what_the_plan_rests_on_and_what_asking_again_buys_is_said() -> None:
    rests = (Rests({"n": 16}, 1.0, True), Rests({"n": 1}, 0.9999, False), Rests({"n": 64}, 0.0, False))
    assert rests_on(rests) == "measured of the plan's time: 100 % at n=16 (not asked for: 99 % at n=1, 0 % at n=64)"
    assert rests_on((Rests({}, 0.5, True),)) == "measured of the plan's time: 50 %" and rests_on(()) == ""
    assert what_is_left(ProfileReport()) == "" == what_is_left(ProfileReport(left=3, interrupted=True))
    assert what_is_left(ProfileReport(left=3, may_save=0.25), "command") == (
        "the same command goes on with the 3 kernel times that are left, which may save up to 25 % of the plan's time"
    )
    assert what_is_left(ProfileReport(left=3, may_save=1.0, rests=rests)).endswith("up to 100 % of the plan's time at n=16")


def test_a_verdict_is_a_line_with_the_rival_and_the_ratio() -> None:
    verdict = Answered("numpy.mine", "softmax f32[n, 32]", {"n": 8}, "PASSED", 30e-6, 2e-7, rival=("c.softmax", 4e-6))
    assert verdict.ratio == 30e-6 / 4e-6
    assert " ".join(str(verdict).split()) == (
        "PASSED numpy.mine 30.0 µs 7.5 × the time of c.softmax, 4.0 µs error 2.0e-07 softmax f32[n, 32] at n=8")
    alone = Answered("numpy.mine", "softmax f32[8]", {}, "PASSED", 30e-6, alone="no other kernel takes it")
    assert alone.ratio is None and "30.0 µs  no other kernel takes it  softmax f32[8]" in str(alone)
    assert "what is left was not counted" in str(ProfileReport(interrupted=True)) and " 0 left" in str(ProfileReport())
    assert " 3 left" in str(ProfileReport(left=3, interrupted=True))
    left = str(Answered("numpy.mine", "softmax f32[8]", {}, LEFT, alone="no other kernel takes it"))
    assert "µs" not in left and "no other" not in left


def test_the_reason_of_a_failure_is_printed_to_its_end() -> None:
    why = "ValueError: no common shape of (3,) (4,) at /home/someone/kernels/my_kernels.py:11 in mine"
    shown = str(ProfileReport(failed=1, verdicts=[Answered("numpy.mine", "softmax f32[n]", {"n": 8}, "RUNTIME_ERROR", why=why)]))
    assert why in " ".join(shown.split()) and max(map(len, shown.splitlines())) <= SCREEN_WIDTH
    at = {("numpy.mine", "softmax f32[n]"): 1, ("numpy.mine", "softmax f32[8]"): 2}
    assert [line for line in ProfileReport(failed_at=at).summary() if "failed at" in line] == [
        "failed at 2 sizes: numpy.mine on softmax f32[8]: "]                 # of one size the verdict has said all


def test_a_report_is_printed_on_one_screen_with_what_was_done_last() -> None:
    long = "x" * 300
    verdicts = [Answered(f"numpy.k{i}", long, {"n": 4}, "RUNTIME_ERROR", why="ValueError: no") for i in range(60)]
    report = ProfileReport(failed=300, verdicts=verdicts, failed_at={(v.kernel, long): 5 for v in verdicts},
                           sizes=tuple({"n": 4 * i, "m": 3} for i in range(9)), unsized=("n",))
    lines = str(report).splitlines()
    assert len(lines) == SCREEN_LINES and max(map(len, lines)) <= SCREEN_WIDTH
    assert any(line.startswith("… ") and line.endswith(" more verdicts") for line in lines)
    assert lines[-11].startswith("0 measured, 0 known already, 300 failed") and lines[-2] == "… 52 more that fail"
    (where,) = (line for line in report.summary() if line.startswith("no size"))
    assert where.startswith("no size was given of n, so that n=0, m=3; n=4, m=3; ")
    assert where.endswith("and 3 more were asked about; at={'n': 16} asks for one")
