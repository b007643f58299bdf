# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make and use ./.venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_DIR ?= runs/demo

.PHONY: demo demo-fit demo-explore test browser lint docs verify bench tables paper calibration clean

# A raw export of a ticket system is answered, and an agent explores Deep Sea; the last lines are the two pages.
demo: demo-fit demo-explore
	@echo
	@echo $(RUN_DIR)/fit/index.html
	@echo $(RUN_DIR)/explore/index.html

demo-fit: $(VENV)/.installed-demo
	$(BIN)/qposterior fit examples/logs/tickets.csv --column state=status --column action=decision --column reward=cost --cost \
		--next-from ticket_id,time --outcome closed_as --missing drop --normalise --out $(RUN_DIR)/fit --force

demo-explore: $(VENV)/.installed-demo
	$(BIN)/qposterior explore deep-sea --agent abrl --depth 10 --until learned --seeds 5 --out $(RUN_DIR)/explore --force

test: lint browser
	$(BIN)/python -m pytest
	@$(BIN)/python benchmarks/stale_pages.py

# The pages are tested in Debian's Chromium, which is installed where that is possible; without it those tests skip.
browser:
	@command -v chromium > /dev/null \
		|| { timeout 300 apt-get update -qq && timeout 600 apt-get install -y -qq chromium > /dev/null; } \
		|| { sleep 10; timeout 300 apt-get update -qq && timeout 600 apt-get install -y -qq chromium > /dev/null; } \
		|| echo "no browser: the tests of the pages will be skipped"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

verify: $(VENV)/.installed-test
	PYTHONPATH=tests $(BIN)/python benchmarks/verify.py --out docs/verification.md

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench.py speed --out docs/benchmarks.md
	$(BIN)/python benchmarks/bench.py agents --out docs/agents.md

# About four hours on two cores; may be stopped at any moment, and goes on where it was.
tables: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/tables.py --stores runs/tables --out docs/results.md

# Every figure of the paper at full size, hours on two cores; goes on where it was stopped.
paper: $(VENV)/.installed-bench
	$(BIN)/qposterior paper --all --out runs/paper
	$(BIN)/python benchmarks/paper_page.py --figures runs/paper --out docs/paper.md

# Coverage, false gains and regret over families of problems with known truth; goes on where it was stopped.
calibration: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/log_calibration.py --store runs/calibration.jsonl --case-logs 200 --out docs/calibration.md

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[report]"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[report]" --group docs
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev --group bench
	@touch $@
