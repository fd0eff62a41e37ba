"""optpipe: from a base language model to the best deployable artifact, with evidence."""

__version__ = "0.1.0"
