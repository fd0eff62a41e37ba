"""Stands for a toolchain's python: `python.py -m optpipe.worker FOLDER` runs fake bodies, every other
`-m MODULE` runs a module of this folder (`-m engine` is the fake engine)."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    _, dash_m, module, *rest = sys.argv
    assert dash_m == "-m", f"only -m is understood, not {sys.argv[1:]}"
    sys.path.insert(0, str(HERE))
    if module == "optpipe.worker":
        from optpipe import worker

        worker.BODIES = dict.fromkeys(worker.BODIES, "body")
        return worker.main(Path(rest[0]))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
