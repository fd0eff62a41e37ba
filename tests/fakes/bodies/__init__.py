"""Job bodies in numpy for whole builds: real formats, figures that come from the weights."""
