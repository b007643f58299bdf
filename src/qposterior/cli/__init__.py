"""The command line: parse, call one function, print. Heavy imports stand inside the commands: `--help` is instant."""
