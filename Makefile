# Builds, runs and tests kubejoin. List all targets: make help.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)

# Without the traces of gRPC, which use html/template, the linker can drop unused methods: 43 MB instead of 62 MB.
TAGS := grpcnotrace

# Without cgo, as releases are: then kubejoin and most tests share what is compiled. The race detector needs cgo.
PURE := CGO_ENABLED=0 $(GO)

# The race detector needs a C compiler. Without one, tests run without the detector and print a
# warning; in CI this is an error.
RACE := $(if $(shell command -v $(or $(CC),gcc,cc) 2>/dev/null),-race)

# Where `make image` and `make release` write. The version of Go and the time of the commit are fixed, so that a commit
# makes the same files on each machine.
DIST := dist
HELM := $(GO) run helm.sh/helm/v3/cmd/helm@v3.22.0
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
image release: export GOTOOLCHAIN = go1.26.8
CHART_VERSION := $(or $(patsubst v%,%,$(filter v%,$(VERSION))),0.0.0-g$(VERSION))
PACK := $(GO) -C deploy/image run . -version '$(VERSION)' -revision '$(COMMIT)' -epoch '$(SOURCE_DATE_EPOCH)'
NAMED := $(DIST)/kubejoin-$(VERSION)

# KUBE=1.35.4 takes this version of Kubernetes for the tests, demos and benchmark; empty is the newest. test/kube pins the
# newest in go.mod, and each other version in go.VERSION.mod.
KUBE ?=
export KUBE
OLDER := $(sort $(patsubst test/kube/go.%.mod,%,$(wildcard test/kube/go.*.mod)))

.PHONY: help build image release always run run-ha demo demo-cluster kube manifests test test-matrix test-oldest unit nightly check bench storm fuzz mutate clean
.DEFAULT_GOAL := help

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/kubejoin
	$(PURE) build -tags $(TAGS) -trimpath -ldflags '$(LDFLAGS)' -o bin/kubejoin ./cmd/kubejoin

$(NAMED)-%: always
	$(if $(and $(VERSION),$(COMMIT),$(SOURCE_DATE_EPOCH)),,$(error not in a git clone: pass VERSION, COMMIT and SOURCE_DATE_EPOCH))
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) \
	  $(PURE) build -tags $(TAGS) -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/kubejoin

PLATFORMS ?= linux-amd64 linux-arm64
image: $(PLATFORMS:%=$(NAMED)-%) ## build container images for PLATFORMS (linux-amd64 linux-arm64), with SBOMs, into dist/
	$(PACK) $(abspath $^)

release: ## build a whole release into dist/: binaries, images, SBOMs, chart, manifests and SHA256SUMS
	rm -f $(DIST)/kubejoin-* $(DIST)/SHA256SUMS
	$(MAKE) image $(NAMED)-darwin-arm64
	$(PACK) $(abspath $(NAMED)-darwin-arm64)
	$(HELM) package deploy/chart/kubejoin --destination $(DIST) --version $(CHART_VERSION) --app-version $(VERSION)
	$(PACK) $(abspath $(DIST)/kubejoin-$(CHART_VERSION).tgz)
	$(HELM) template kubejoin $(DIST)/kubejoin-$(CHART_VERSION).tgz --namespace kubejoin-system \
	  --set createNamespace=true --kube-version 1.37 >$(NAMED)-manifests.yaml
	cd $(DIST) && sha256sum kubejoin-* >SHA256SUMS

run: build ## start a standalone join service on https://127.0.0.1:9443
	bin/kubejoin serve --data-dir ./kubejoin-data

run-ha: build ## start three join services on three etcd members, on https://127.0.0.1:9443 to 9445 (the first run builds etcd, 2 minutes)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo -ha

demo: build ## join a real node to a real control plane through kubejoin (needs root; the first run builds Kubernetes, 6 minutes)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo

demo-cluster: build ## make a whole cluster with kubeadm init and containers, join a worker, and remove it (needs root, runc, iptables)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo -cluster

kube: ## build the Kubernetes, containerd and etcdctl binaries for tests and demo
	@$(GO) run ./test/demo -build

manifests: ## write deploy/manifests and the README of the chart
	cd test/chart && $(GO) run . -chart ../../deploy/chart/kubejoin -out ../../deploy/manifests
	cd test/chart && $(GO) run . -chart ../../deploy/chart/kubejoin -values testdata/revocation.yaml -only revocation.yaml -out ../../deploy
	cd test/chart && $(GO) run . -chart ../../deploy/chart/kubejoin -static -out ../../deploy
	$(GO) run github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2 --chart-search-root deploy/chart --log-level error

# The race detector watches the packages themselves, and the whole program on a cluster and standalone. All else below
# test/, and the command, which its tests start a thousand times, run without it: with it they take twice as long.
# Whole clusters run by themselves, two at a time. Most other tests with Kubernetes wait for processes and timers, so run
# more of them at once than there are cores, and the longest first.
RACED  = ./test/limits ./test/standalone ./server ./tokens/boltstore ./tokens/secretstore ./internal/hostca $$($(GO) list ./... | grep -v -e /kubejoin/test -e /cmd/kubejoin$$)
UNRACED = ./test/host ./test/ha ./test/outage ./test/commands ./test/join ./cmd/kubejoin $$($(GO) list ./test/... | grep -v -e /kubeadm$$ -e /limits$$ -e /standalone$$ -e /load$$ -e /storm$$)
# Linking is faster without the symbols of debuggers (-w). `check` runs vet.
TEST = test -ldflags=-w -vet=off -count 1
test: check kube ## run all tests (node tests need root)
	@test -n '$(RACE)' || { echo 'make test: no C compiler, running without the race detector; install gcc'; test -z "$$CI"; }
	$(GO) list $(RACE) -test -export $(RACED) >/dev/null # compiles, before the tests, which would wait for the compiler
	$(GO) $(TEST) $(RACE) -timeout 30m -p 4 -parallel 4 $(RACED)
	$(PURE) $(TEST) -timeout 40m -parallel 2 ./test/kubeadm
	$(PURE) $(TEST) -timeout 60m -p 4 -parallel 4 $(UNRACED)
	$(PURE) $(TEST) -timeout 30m -p 1 ./test/load ./test/storm
	cd test/importer && $(GO) test -count 1 -timeout 20m ./...
	cd deploy/image && $(GO) $(TEST) -timeout 30m ./...
	cd cmd/kubejoin-pkcs11 && $(if $(RACE),$(GO) $(TEST) $(RACE) -timeout 10m ./...,echo 'not tested: it needs a C compiler')

test-matrix: ## run all tests on each supported version of Kubernetes
	$(MAKE) test KUBE=
	for version in $(OLDER); do $(MAKE) test KUBE=$$version || exit; done

# CI runs these: joins, also with tokens in etcd, a limited token, a serving certificate, a control plane, a rejoin, a
# revocation, and a CA rotation with the restarts that Kubernetes before 1.36 needs.
OLDEST := $(firstword $(OLDER))
ON_OLDEST := TestTokenForOneNodeAdmitsOne|TestAPIServerVerifiesKubeletServingCertificate|TestJoinsByEveryFormat|TestJoinsWithTokensInEtcd|TestControlPlaneByOneCall|TestExpiredKubeletComesBack|TestRevocationWebhook|TestReplacesClusterCA
test-oldest: ## run a few tests on the oldest supported version of Kubernetes (needs root)
	KUBE=$(OLDEST) $(GO) run ./test/demo -build
	KUBE=$(OLDEST) $(PURE) $(TEST) -timeout 20m -p 2 -run '^($(ON_OLDEST))$$' \
	  ./test/kubeadm ./test/limits ./test/join ./test/access

# Most of these tests wait for disks and processes, so run more of them at once than there are cores.
unit: ## run only the fast tests, without Kubernetes and root
	$(PURE) test -short -vet=off -p 4 -parallel 8 ./...

CHURN ?= 2h
nightly: fuzz ## fuzz, swap CAs while they sign, then let machines join and leave for CHURN (2h): memory must stay flat
	KUBEJOIN_TEST_SIGNATURES=100000 $(GO) test $(RACE) -count 1 -timeout 1h -run '^(TestCertificatesAreRightWhileCAIsReplaced|TestSwapsCAWhileItSigns|TestSignLikeClusterBootstrap)$$' ./signer ./internal/signerd ./clusterinfo
	KUBEJOIN_TEST_CHURN=$(CHURN) $(GO) test -count 1 -timeout 0 -v -run '^TestMemoryStaysFlatUnderChurn$$' ./test/ha

check: ## check formatting, go vet, go.mod files, staticcheck, the chart, and the words of docs and comments
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(PURE) vet ./...
	$(GO) mod tidy -diff
	cd test/kube && $(GO) mod tidy -diff && for version in $(OLDER); do $(GO) mod tidy -diff -modfile=go.$$version.mod || exit; done
	cd test/containers && $(GO) mod tidy -diff
	cd test/cfssl && $(GO) mod tidy -diff
	cd test/etcdctl && $(GO) mod tidy -diff
	cd test/specs && $(GO) mod tidy -diff
	cd test/ignition && $(GO) mod tidy -diff && $(GO) vet ./...
	cd test/chart && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count 1 ./...
	cd test/importer && $(GO) mod tidy -diff && $(GO) mod tidy -diff -modfile=go.newest.mod
	cd deploy/image && $(GO) mod tidy -diff && $(GO) vet ./...
	cd cmd/kubejoin-pkcs11 && $(GO) mod tidy -diff && $(if $(RACE),$(GO) vet ./...,echo 'kubejoin-pkcs11 not checked: it needs a C compiler')
	$(PURE) run honnef.co/go/tools/cmd/staticcheck@v0.7.0 ./...
	$(GO) run github.com/vale-cli/vale/v3/cmd/vale@v3.21.0 --config test/prose/vale.ini $$(git ls-files '*.md' '*.go')

# QUICK=1 runs a short trial. ROUNDS, CSRS, TOKENS, ENTRIES and WAVE set sizes. ONLY selects one subject: csr, tokens, join,
# size, certificate, api, revocation, store, record, go, wave or memory. INTO=docs/benchmarks.md also writes the main rows to
# this file. test/bench/README.md explains the subjects and rows.
BENCH := $(if $(QUICK),-quick) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(CSRS),-csrs $(CSRS)) $(if $(TOKENS),-tokens $(TOKENS)) $(if $(ENTRIES),-entries $(ENTRIES)) $(if $(ONLY),-only $(ONLY)) $(if $(WAVE),-wave-for $(WAVE)) $(if $(PROFILE),-profile $(PROFILE)) $(if $(INTO),-into $(INTO))
bench: build ## compare the speed of kubejoin, kube-controller-manager and cfssl (an hour; the first run builds Kubernetes)
	@$(GO) build -o bin/bench ./test/bench
	@bin/bench $(BENCH)

# MACHINES, REPLICAS, TOKENS (each, one, both), RAMP, ATONCE and HEARTBEAT set what joins. PLOT=FILE and OUTPUT=json change
# what it writes; with json, run make -s. 'bin/storm -help' explains all flags.
STORM := $(if $(MACHINES),-machines $(MACHINES)) $(if $(REPLICAS),-replicas $(REPLICAS)) $(if $(TOKENS),-tokens $(TOKENS)) $(if $(RAMP),-ramp $(RAMP)) $(if $(ATONCE),-at-once $(ATONCE)) $(if $(HEARTBEAT),-heartbeat $(HEARTBEAT)) $(if $(PLOT),-plot $(PLOT)) $(if $(OUTPUT),-o $(OUTPUT))
storm: build ## let MACHINES (1000) simulated kubelets join REPLICAS (3) at once, while a leader dies and a network breaks
	@$(GO) build -o bin/storm ./test/storm
	@bin/storm $(STORM)

FUZZTIME ?= 1m
fuzz: ## run each fuzz target for FUZZTIME (1m)
	@GO='$(GO)' test/fuzz.sh $(FUZZTIME)

# ONLY=./signer selects the guards of one package, TESTS=./signer the tests of one. RUN=TestIssue runs only these tests.
mutate: kube ## switch off each guard of tokens, minting, signer and server, and report those without a failing test
	@$(GO) run ./test/mutate $(if $(ONLY),-only '$(ONLY)') $(if $(TESTS),-tests '$(TESTS)') $(if $(RUN),-run '$(RUN)')

clean: ## remove build results (not kubejoin-data and kubejoin-ha-data)
	rm -rf bin dist test/kube/bin test/containers/bin test/cfssl/bin test/etcdctl/bin test/specs/bin
