"""The first lines of a program that must not find Cloze: the finder of the editable install is taken out."""

PRELUDE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in repr(finder)]
sys.path = [path for path in sys.path if path and "__editable__" not in path]
for room in ("data", "model", "orchestration", "tuning"):
    try:
        __import__(room)
    except ImportError:
        continue
    raise SystemExit(f"{room} can be imported")
"""
