"""What the clients' tests share is in python/tests/clients."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
