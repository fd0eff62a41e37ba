"""Small real programs that stand for heavy ones in tests: a toolchain's python, job bodies, an engine."""
