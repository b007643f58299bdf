"""Every figure, example and theorem of the paper, one file each, made with `qposterior`, which does without them."""
