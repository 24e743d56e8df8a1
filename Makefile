# make test      every test; it installs what is missing (SLUICE_NO_INSTALL=1 forbids that) and says what it left out
# make integration  of these, the tests on servers of every version in containers, a cluster, sentinels
# make bench     measures Sluice beside a floor and its peers, and writes docs/performance.md
# make mutate    how many small changes to the Lua scripts the tests notice
# make lint      golangci-lint, luacheck, go vet, go mod tidy
# make fuzz      every fuzz target for some seconds
# make generate  writes the generated files anew
#
# SLUICE_REDIS_SERVER   a redis-server or valkey-server binary other than the one on the PATH
# SLUICE_REQUIRE_ALL=1  whatever would be left out is a failure; it is so where CI is set
# ACCESS_LOG            an access log of a real site for the example to replay; it is not part of the repository
# FUZZTIME              how long each fuzz target runs, 3s

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT := build/bin/golangci-lint-$(GOLANGCI_LINT_VERSION)

MODULES := . bench breaker conformance denycache examples examples/prometheus integration otelsluice plan
PACKAGES := $(MODULES:%=./%/...)
EXAMPLES = $(shell cd examples && go list ./...)
# The tests that run goroutines of ours. The others drive the scripts one call at a time, and miniredis' Lua is ten
# times slower with the race detector.
RACED := ./... ./breaker/... ./denycache/... ./otelsluice/... ./plan/... ./conformance/servers ./examples/prometheus/... $(filter-out %/quickstart,$(EXAMPLES))

FUZZTIME ?= 3s
ACCESS_LOG ?= $(wildcard ../shared/data/access.log)
export SLUICE_TRIAL_LOG := $(abspath $(ACCESS_LOG))

ifneq ($(CI),)
SLUICE_REQUIRE_ALL ?= 1
endif
ifeq ($(SLUICE_REQUIRE_ALL),1)
export SLUICE_REQUIRE_REDIS := 1
STRICT := -strict
endif
ifneq ($(shell command -v cc),)
RACE := -race
endif

.PHONY: test lint lint-go lint-lua vet tidy generated unit unit-raced unit-rest integration bench fuzz example generate mutate setup left-out clean

PARTS := generated unit-raced unit-rest integration example left-out

# One after the other, since some tests measure time; all of them, so that a failure does not hide another.
test: setup
	@trap 'exit 130' INT TERM; failed=; \
	for part in $(PARTS); do \
		start=$$SECONDS; $(MAKE) $$part || failed="$$failed $$part"; echo "=== $$part: $$((SECONDS - start)) s"; \
	done; \
	if [ -n "$$failed" ]; then echo "*** FAILED:$$failed"; exit 1; fi

setup:
	@.ci/setup

# What the setup could not provide, and so was not run.
left-out:
	@if [ -s build/left-out ]; then \
		printf '\n*** LEFT OUT:\n'; sed 's/^/*** /' build/left-out; \
		[ "$(SLUICE_REQUIRE_ALL)" != 1 ]; \
	fi

vet:
	go vet $(PACKAGES)

tidy:
	@failed=0; for m in $(MODULES); do (cd $$m && go mod tidy -diff) || failed=1; done; exit $$failed

# go vet is make lint's: with each go test it would look at all that is imported, and once more with the race detector.
unit: unit-raced unit-rest

unit-raced:
	go run ./conformance/cmd/testall $(STRICT) -vet=off -timeout 20m $(RACE) $(RACED)

unit-rest:
	go run ./conformance/cmd/testall $(STRICT) -vet=off -timeout 20m ./bench/... ./examples/quickstart $$(cd conformance && go list ./... | grep -v /servers$$)

# Servers of every version in containers, a cluster, sentinels, faults, the hammer.
integration:
	@mkdir -p build
	SLUICE_LEFT_OUT=$(CURDIR)/build/left-out integration/docker.sh go run ./conformance/cmd/testall $(STRICT) -vet=off -timeout 20m ./integration/...

# Some minutes per server, with nothing else running. It writes docs/performance.md.
bench:
	cd bench && go run -tags mennanov . -out ../docs

# One target at a time: go test -fuzz takes no more.
fuzz:
	@ran=0; failed=0; while IFS=: read -r file target; do \
		ran=1; \
		go test -run '^$$' -fuzz "^$${target#func }\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || failed=1; \
	done < <(grep -rHoE --include='*_test.go' '^func Fuzz\w+' .); [ $$ran = 1 ] && exit $$failed

# The main job: the log that is shipped, and a real site's where there is one.
example:
	go run ./examples/quickstart
	@if [ -n "$(SLUICE_TRIAL_LOG)" ]; then \
		(set -x; go run ./examples/quickstart -log "$(SLUICE_TRIAL_LOG)" -policy 10/1m); \
	fi

generate:
	go generate $(PACKAGES)

DIGESTS = find scripts testdata conformance examples \( -name node_modules -o -name __pycache__ \) -prune -o -type f -print | sort | xargs sha1sum

generated:
	@before=$$($(DIGESTS)); go generate $(PACKAGES); \
	diff <(echo "$$before") <($(DIGESTS)) || { echo 'generated files were out of date; they are up to date now'; exit 1; }

lint: lint-lua vet tidy lint-go

lint-lua:
	@if command -v luacheck >/dev/null; then luacheck --quiet scripts; else echo 'no luacheck: the scripts are not linted'; fi

# Built for itself, outside this workspace.
$(GOLANGCI_LINT):
	@mkdir -p $(@D)
	GOWORK=off GOFLAGS= GOBIN=$(abspath $(@D)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv $(@D)/golangci-lint $@

lint-go: $(GOLANGCI_LINT)
	@failed=0; for m in $(MODULES); do (cd $$m && $(abspath $(GOLANGCI_LINT)) run ./...) || failed=1; done; exit $$failed

mutate:
	cd conformance && go run ./cmd/mutate

clean:
	rm -rf build
