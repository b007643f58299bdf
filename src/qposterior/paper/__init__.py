"""Every figure, example and theorem of the paper, one file each; nothing else imports this."""
