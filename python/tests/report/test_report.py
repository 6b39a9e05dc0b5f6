"""The files that the report writes, and its errors."""

import html.parser
import json
import pathlib
import re
import struct
import subprocess
import sys
from base64 import b64decode
from xml.etree import ElementTree

import pytest
from swapline.package import program_path
from swapline.report.__main__ import main
from swapline.report.page import same_numbers
from swapline.report.run import read_run
from synthetic_run import summary, write_run

matplotlib = pytest.importorskip("matplotlib", reason="drawing needs matplotlib")


class Page(html.parser.HTMLParser):
    """Rows of text of each table, images, and every address that the page asks for."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.rows: list[list[str]] = []
        self.images: list[str] = []
        self.addresses: list[str] = []
        self.in_cell = False
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "img":
            self.images.append(given["src"])
        self.addresses += [given[key] for key in ("src", "href") if key in given]
        if tag == "tr":
            self.rows.append([])
        self.in_cell = tag in ("td", "th")
        if self.in_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.in_cell = False

    def handle_data(self, text):
        if self.in_cell:
            self.rows[-1][-1] += text

    def row(self, name: str) -> list[str]:
        return next(row for row in self.rows if row[0] == name)


def size_of_png(path: pathlib.Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def words_of_svg(path: pathlib.Path) -> set[str]:
    """What is written in it: matplotlib draws text as shapes and notes it in comments."""
    ElementTree.parse(path)  # well-formed
    return set(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_one_run(tmp_path):
    folder = write_run(tmp_path / "outputs")
    assert main([str(folder)]) == 0
    words = words_of_svg(folder / "report.svg")
    assert {"device 0", "device 1", "compute", "side", "H2D", "D2H", "host", "host waits",
            "optimizer update", "device memory, MiB", "step 2: virtual time, ms",
            "peak 50.0 MiB", "peak 12.0 MiB"} <= words
    assert "peer" not in words
    width, height = size_of_png(folder / "report.png")
    assert width == 1210 and height > 400
    page = Page(folder / "report.html")
    assert page.row("step, median") == ["step, median", "10.000 ms"]
    assert page.row("peak allocated") == ["peak allocated", "50.00 MiB"]
    assert page.row("3") == ["3", "3.62500", "1.5000", "10.000 ms", "0.250 ms", "50.00 MiB"]
    assert page.row("chunks") == ["chunks", "–"]  # a field that this summary does not have


def test_the_page_is_one_file(tmp_path):
    folder = write_run(tmp_path / "outputs")
    main([str(folder)])
    page = Page(folder / "report.html")
    (image,) = page.images
    head, data = image.split(",", 1)
    assert head == "data:image/svg+xml;base64"
    assert b64decode(data) == (folder / "report.svg").read_bytes()
    assert page.addresses == [image]
    assert "http" not in page.text.replace(data, "")
    assert "&lt;b&gt;&amp;" in page.text and "<b>" not in page.text  # the flavor, as text


def test_two_runs_side_by_side(tmp_path):
    first = write_run(tmp_path / "first")
    steps = [dict(step, step_ms=8.0, peak_allocated_bytes=40 << 20) for step in summary()["steps"]]
    second = write_run(tmp_path / "second", steps=steps, peak_allocated_bytes=40 << 20)
    out = tmp_path / "report"
    assert main([str(first), str(second), "--out", str(out), "--names", "new,old",
                 "--title", "Both"]) == 0
    words = words_of_svg(out / "report.svg")
    assert {"Both", "new, device 0", "old, device 1"} <= words
    page = Page(out / "report.html")
    assert page.row("step, median") == ["step, median", "10.000 ms", "8.000 ms", "+25.0%"]
    assert page.row("peak allocated")[1:] == ["50.00 MiB", "40.00 MiB", "+25.0%"]
    assert page.row("races")[1:] == ["0", "0", "equal"]
    assert ["step", "loss, new", "loss, old"] in [row[:3] for row in page.rows]
    assert "of all 3 steps are equal, to the last bit" in page.text
    assert not (first / "report.html").exists()


def test_losses_are_compared(tmp_path):
    def runs(*changes):
        made = [read_run(write_run(tmp_path / f"{len(list(tmp_path.iterdir()))}")) for _ in "ab"]
        for step, key, value in changes:
            made[1].summary["steps"][step][key] = value
        return made

    assert "equal, to the last bit" in same_numbers(runs())
    assert "differ from step 2 on" in same_numbers(runs((1, "grad_norm", 1.5 + 1e-15)))
    assert "no losses" in same_numbers(runs((0, "loss", None)))
    shorter = runs()
    shorter[1].summary["steps"].pop()
    assert "in the 2 steps that both runs have" in same_numbers(shorter)


def test_overlay_draws_the_other_run_behind(tmp_path):
    folders = [write_run(tmp_path / name) for name in ("first", "second")]
    assert main([*map(str, folders), "--overlay", "--devices", "0"]) == 0
    words = words_of_svg(folders[0] / "report.svg")
    assert "all, second" in words
    assert not {"device 1", "second"} & words


def test_the_same_run_gives_the_same_files(tmp_path):
    folder = write_run(tmp_path / "run")
    for out in ("a", "b"):
        main([str(folder), "--out", str(tmp_path / out)])
    for name in ("report.png", "report.svg", "report.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_window_and_one_device(tmp_path):
    folder = write_run(tmp_path / "run")
    assert main([str(folder), "--window", "104.5:112", "--devices", "1"]) == 0
    words = words_of_svg(folder / "report.svg")
    assert "from 104.5 ms on: virtual time, ms" in words
    assert "H2D" not in words


def test_without_a_trace_there_is_a_page(tmp_path):
    folder = write_run(tmp_path / "run", trace=False)
    assert main([str(folder)]) == 0
    assert "No trace.json" in (folder / "report.html").read_text()
    assert not (folder / "report.png").exists()


def refused(capsys, *arguments) -> str:
    assert main(list(map(str, arguments))) == 1
    return capsys.readouterr().err


def test_errors_name_what_is_wrong(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "does not exist: give a run's folder" in refused(capsys, tmp_path / "none")
    assert "is a file" in refused(capsys, run / "trace.json")
    assert "neither summary.json nor trace.json" in refused(capsys, empty)
    assert "has steps 1 to 3" in refused(capsys, run, "--step", "9")
    assert "goes from 100.000 to 131.000 ms" in refused(capsys, run, "--window", "5:6")
    assert "give two numbers" in refused(capsys, run, "--window", "5")
    assert "no device 7: it has 0, 1" in refused(capsys, run, "--devices", "7")
    assert "give indices" in refused(capsys, run, "--devices", "x")
    assert "--names has 3 names for 1" in refused(capsys, run, "--names", "a,b,c")
    assert "--out" in refused(capsys, run, "--out", run / "trace.json")
    assert [path.name for path in run.iterdir() if "report" in path.name] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(summary())[:-9], "cut off or no JSON"),
        ('{"steps": []}', "is no summary of a run: it has no device"),
        (json.dumps(summary(steps=[{"step": 1}])), r"it has no steps\[0\].loss"),
    ],
)
def test_a_file_that_is_no_summary(tmp_path, capsys, text, message):
    run = write_run(tmp_path / "run")
    (run / "summary.json").write_text(text)
    assert re.search(message, refused(capsys, run))


def test_more_than_two_folders(tmp_path, capsys):
    run = str(write_run(tmp_path / "run"))
    with pytest.raises(SystemExit):
        main([run] * 3)
    assert "at most two" in capsys.readouterr().err


def test_without_matplotlib(tmp_path, capsys, monkeypatch):
    run = write_run(tmp_path / "run")
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert 'pip install matplotlib, or "swapline[report]"' in refused(capsys, run)
    assert not (run / "report.html").exists()


@pytest.mark.skipif(not program_path().exists(), reason="the program is not built")
def test_a_run_of_the_program(tmp_path):
    """Two devices in a pipeline, everything swapped: each lane is there, in every step."""
    command = [program_path(), "train", "--training.steps", "3", "--training.seq-len", "16"]
    command += ["--training.local-batch-size", "2", "--model.num-layers", "4"]
    command += ["--parallelism.pipeline-parallel-degree", "2", "--profiling.enable-trace"]
    command += ["--optimizer.swap-optimizer", "--swap-layer-input.enable"]
    command += ["--device.dry-run", "--job.dump-folder", tmp_path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path)
    assert len(run.trace.steps(run.num_steps())) == 3
    for device in run.trace.devices.values():
        assert device.lane_names() == ["compute", "H2D", "D2H", "peer", "host"]
        for step in (1, 2):
            assert all(device.spans(lane, run.window(step)) for lane in device.lane_names())
    peaks = [max(map(sum, device.bytes_by_kind)) for device in run.trace.devices.values()]
    assert max(peaks) == run.summary["peak_allocated_bytes"]
    assert main([str(tmp_path), "--step", "1"]) == 0
    assert {"device 0", "device 1", "peer"} <= words_of_svg(tmp_path / "report.svg")
