# prismfs: a file system in a directory, over FUSE.
# `make` lists the targets.

PREFIX      ?= /usr/local
SBINDIR     ?= /sbin
DESTDIR     ?=
GO          ?= go
VERSION     ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
BIN         := bin/prismfs
STATE       := $(if $(XDG_STATE_HOME),$(XDG_STATE_HOME)/prismfs,$(CURDIR)/demo)
FUZZTIME    ?= 20s
BENCH       ?= .
# Tools that the integration tests use, as the packages that bring them.
PACKAGES    := rsync sqlite3 git fuse3 attr acl e2fsprogs mount tar diffutils findutils procps util-linux
# Far above what they take: a stuck test must end some time.
TEST_TIMEOUT ?= 30m
# What is built from the sources alone: every package but the mounts' tests.
UNIT        = $(shell $(GO) list ./... | grep -v '/integration')

.DEFAULT_GOAL := help
.PHONY: help build run stop test check lint race unit fuzz integration bench profile microbench oracle install uninstall clean deps

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/prismfs
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o $(BIN) ./cmd/prismfs
	@echo "built $(BIN) ($(VERSION))"

run: build ## make a store, mount it, show a short tour; it stays mounted
	@sh ./demo.sh '$(BIN)' '$(STATE)'

stop: ## unmount what `make run` has mounted
	@if [ -x $(BIN) ] && [ -d '$(STATE)/store' ]; then \
		$(BIN) umount '$(STATE)/store' 2>/dev/null && echo "unmounted $(STATE)/mnt" || \
		{ code=$$?; if [ $$code = 6 ]; then echo "nothing to stop"; else $(BIN) umount '$(STATE)/store'; fi; }; \
	else echo "nothing to stop"; fi

test: deps build ## everything: unit tests, then real mounts (15 minutes on 2 cores; SHORT=1: fewer kills)
	@set -e; echo "== lint"; $(MAKE) --no-print-directory lint
	@set -e; echo "== unit tests"; $(GO) test -tags invariants -short -timeout $(TEST_TIMEOUT) $(UNIT)
	@set -e; echo "== integration tests"; PRISMFS_BIN='$(CURDIR)/$(BIN)' $(GO) test -count=1 $(if $(SHORT),-short) -timeout $(TEST_TIMEOUT) -v ./integration 2>&1 | sh ./.ci/summary
	@echo "== all tests passed"

check: build lint ## before a commit: build, lint, unit tests with -race (3 minutes)
	$(GO) test -race -short -timeout 5m $(UNIT)

lint: ## gofmt, go vet, the order of the packages
	@out="$$(gofmt -l $$(git ls-files '*.go'))"; if [ -n "$$out" ]; then echo "not formatted by gofmt:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) test -run '^TestLayers$$' ./integration

unit: ## unit tests only
	$(GO) test -tags invariants $(UNIT)

race: ## unit tests with the race detector, in full
	$(GO) test -race -timeout 30m $(UNIT)

fuzz: ## fuzz every decoder for FUZZTIME (20s each)
	@set -e; for p in $(UNIT); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; \
		done; \
	done

integration: deps build ## real mounts only (RUN=regexp chooses)
	PRISMFS_BIN='$(CURDIR)/$(BIN)' $(GO) test -count=1 -timeout 60m -v -run '$(or $(RUN),.)' ./integration

bench: ## compare with ext4 and a loopback mount, into BENCH.md (ROWS=regexp ROUNDS=3 CONTENDERS=... SIZE=GiB DIR=...)
	cd integration/bench && $(GO) run . -out '$(CURDIR)/BENCH.md' $(if $(ROWS),-rows '$(ROWS)') $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(CONTENDERS),-contenders '$(CONTENDERS)') $(if $(SIZE),-size $(SIZE)) $(if $(DIR),-dir '$(DIR)')

profile: ## rows of bench with a CPU profile of the daemon (WORKLOAD=create4k-1)
	cd integration/bench && $(GO) run . -profile -profile-dir '$(CURDIR)' -size 4 -rows '^($(or $(WORKLOAD),create4k-1))' $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(DIR),-dir '$(DIR)')

microbench: ## benchmarks of the packages (BENCH=regexp chooses)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(UNIT)

oracle: ## compare the engine's files with those of LevelDB
	cd integration/oracle && $(GO) test ./...

install: build ## install prismfs and the helpers of mount(8) (PREFIX, DESTDIR)
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(SBINDIR)'
	install -m 755 $(BIN) '$(DESTDIR)$(PREFIX)/bin/prismfs'
	@for n in mount.prismfs mount.fuse.prismfs umount.prismfs umount.fuse.prismfs mkfs.prismfs fsck.prismfs; do \
		ln -sf '$(PREFIX)/bin/prismfs' '$(DESTDIR)$(SBINDIR)/'$$n && echo "$(DESTDIR)$(SBINDIR)/$$n -> $(PREFIX)/bin/prismfs"; \
	done

uninstall: ## remove what install put there
	rm -f '$(DESTDIR)$(PREFIX)/bin/prismfs'
	@for n in mount.prismfs mount.fuse.prismfs umount.prismfs umount.fuse.prismfs mkfs.prismfs fsck.prismfs; do \
		rm -f '$(DESTDIR)$(SBINDIR)/'$$n; \
	done

.PHONY: fstests pjdfstest
fstests: build ## xfstests, built in the directory XFSTESTS (GROUP=quick, TESTS=)
	@[ -x '$(XFSTESTS)/check' ] || { echo "XFSTESTS=DIR: where xfstests is built"; exit 2; }
	PRISMFS_BIN='$(CURDIR)/$(BIN)' VERBOSE=1 ./integration/fstests/run.sh fstests '$(XFSTESTS)' $(or $(TESTS),-g $(or $(GROUP),quick))

pjdfstest: build ## pjdfstest, built in the directory PJDFSTEST
	@[ -x '$(PJDFSTEST)/pjdfstest' ] || { echo "PJDFSTEST=DIR: where pjdfstest is built"; exit 2; }
	PRISMFS_BIN='$(CURDIR)/$(BIN)' ./integration/fstests/run.sh pjdfstest '$(PJDFSTEST)'

deps: ## install what the tests need and this machine lacks
	@missing=; for tool in rsync sqlite3 git fusermount3 setfattr setfacl mkfs.ext4 losetup tar diff find; do \
		command -v $$tool >/dev/null 2>&1 || [ -x /usr/sbin/$$tool ] || [ -x /sbin/$$tool ] || missing="$$missing $$tool"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "not installed:$$missing"; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then echo "install them: the tests that use them are skipped"; exit 0; fi; \
	echo "installing with apt-get: $(PACKAGES)"; \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES); } >/dev/null || echo "apt-get failed: tests that need a missing tool say so"

clean: stop ## remove bin and the demonstration store
	rm -rf bin
	@if [ -d '$(STATE)/store' ]; then rm -rf '$(STATE)/store' '$(STATE)/mnt' '$(STATE)/log'; rmdir '$(STATE)' 2>/dev/null || true; fi
