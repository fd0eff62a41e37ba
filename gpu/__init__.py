"""What optpipe does on a machine with a GPU and no network: files carried there in pieces, and a timed check."""
