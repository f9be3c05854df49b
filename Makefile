PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-prism test-live test-flink lint prism flink flink-stop bench pictures services clean

$(VENV)/.base: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --editable '.[dev]'
	touch $@

# The main job on a week of real flights, on whatever engine is there.
demo: $(VENV)/.base
	$(BIN)/python examples/flights.py

# The fast tests: they need nothing but pip.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not prism and not slow and not live and not flink" -n 2 $(ARGS)

# The tests on the Prism engine, which is built with Go once.
test-prism: $(VENV)/.dev prism
	$(BIN)/python -m pytest -m "(prism or slow) and not live and not flink" -n 2 --dist worksteal $(ARGS)

# The tests with Pub/Sub, Kafka and PostgreSQL, whose servers they start themselves (Go, Java and
# Maven; PostgreSQL installed).
test-live: $(VENV)/.dev prism
	$(BIN)/python -m pytest -m live -n 2 --dist worksteal $(ARGS)

# The tests on a Flink cluster of two task managers, which they start (Java, Maven, Go).
test-flink: $(VENV)/.dev
	$(BIN)/python -m pytest -m flink $(ARGS)

# A Flink cluster on this machine, with a job server and Python workers; `make flink-stop` ends it.
flink: $(VENV)/.base
	$(BIN)/beam-lateness cluster up $(ARGS)

flink-stop: $(VENV)/.base
	$(BIN)/beam-lateness cluster down $(ARGS)

prism: $(VENV)/.dev
	$(BIN)/python -m beam_lateness.pipelines.runners

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p beam_lateness -p tests -p services
	$(BIN)/python -m pytest --doctest-modules beam_lateness -q

bench: $(VENV)/.dev prism
	$(BIN)/python benchmarks/generators.py
	$(BIN)/python benchmarks/marginal.py
	$(BIN)/python -m benchmarks.topics
	$(BIN)/python -m benchmarks.upsert

# The pictures of docs/watermarks.md.
pictures: $(VENV)/.dev
	$(BIN)/python -m docs.pictures

# Pub/Sub, Kafka and PostgreSQL on this machine, until Ctrl-C; ARGS=kafka starts one of them.
services: $(VENV)/.dev
	$(BIN)/python -m services $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info
