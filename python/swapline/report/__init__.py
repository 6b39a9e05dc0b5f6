"""Pictures and a page from what runs leave behind: trace.json and summary.json.

    python -m swapline.report outputs/                 one run
    python -m swapline.report with_swap/ without/      two, side by side

Drawing needs matplotlib: pip install "swapline[report]".
"""

from swapline.report.page import page_of
from swapline.report.picture import draw
from swapline.report.run import Run, read_run
from swapline.report.trace import ReportError, Trace, Window, read_trace

__all__ = ["ReportError", "Run", "Trace", "Window", "draw", "page_of", "read_run", "read_trace"]
