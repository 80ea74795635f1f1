# Each target is one line and sets up what it needs; `make help` lists them.
PY := .venv/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/proto

help:           ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:          ## .venv from the lock
	@packaging/setup

demo:           ## a two-node super-node on this machine: pods, pings, a shared file, QoS decisions (as root, 1 min)
	@packaging/setup demo && $(PY) -m ubsim.demo

test: test-kernel test-plain ## every test that runs on a bare machine (as root)

test-plain:     ## those that change nothing of the machine
	@packaging/setup test && .venv/bin/pytest $(PYTEST_OPTIONS) -m "not kernel and not binary and not chart and not apiserver"

test-kernel: test-links test-volumes ## the tests that change links and mounts, in namespaces of their own

test-links:     ## those of them that are not about volumes
	@packaging/setup test && packaging/in-namespaces .venv/bin/pytest $(PYTEST_OPTIONS) -m kernel --ignore=tests/csi_ub

test-volumes:   ## those of volumes
	@packaging/setup test && packaging/in-namespaces .venv/bin/pytest $(PYTEST_OPTIONS) -m kernel tests/csi_ub

lint:           ## ruff and the import contracts
	@packaging/setup && .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/lint-imports

fmt:            ## format, and fix what ruff can
	@packaging/setup && .venv/bin/ruff format . && .venv/bin/ruff check --fix .

type:           ## mypy --strict
	@packaging/setup && .venv/bin/mypy

proto:          ## generate the stubs beside their .proto files
	@packaging/setup && packaging/generate-stubs

conformance:    ## csi-sanity against every kind of pool (as root, needs Go)
	@packaging/setup test && $(PY) -m tests.csi_ub.conformance

consistency:    ## do volumes keep their promise? three nodes, kills, pulled cables, controls that must fail (as root, 4 min)
	@packaging/setup test && packaging/in-namespaces sh -c '$(PY) -m tests.csi_ub.consistency && $(PY) -m tests.csi_ub.consistency.eventual'

consistency-short: ## the same, a second each (as root, 2 min)
	@packaging/setup test && packaging/in-namespaces sh -c '$(PY) -m tests.csi_ub.consistency --seconds 1 && $(PY) -m tests.csi_ub.consistency.eventual --seconds 8'

bench-csi:      ## calls of ub-csi, and bytes through volumes and models against a raw disk (as root, 2 min)
	@packaging/setup test && packaging/in-namespaces $(PY) -m bench.csi

build:          ## dist/ub-node/: the five executables, one bundle
	@packaging/setup build && $(PY) packaging/build.py

test-binary:    ## the tests of the built executables
	@packaging/setup test && packaging/setup build && $(PY) packaging/build.py && .venv/bin/pytest $(PYTEST_OPTIONS) -m binary

test-chart:     ## the Helm chart, against the Kubernetes API (needs Go for its tools)
	@packaging/setup test && .venv/bin/pytest $(PYTEST_OPTIONS) -m chart

docs:           ## what is made from the code: docs/reference.md, docs/compatibility.md, the schema of the chart's values
	@packaging/setup && $(PY) -m docs.reference >docs/reference.md && $(PY) -m docs.compatibility >docs/compatibility.md && $(PY) packaging/values_schema.py >packaging/chart/ub-node/values.schema.json

manifests:      ## packaging/manifests/: the chart for people without Helm (needs Go for Helm)
	@packaging/render-manifests

release:        ## dist/ub-node-VERSION-linux-ARCH.tar.gz, its checksums and SBOM
	@packaging/setup build && $(PY) packaging/release.py

bench-cni:      ## what attaching costs, against Debian's host-device and bridge (as root)
	@packaging/setup demo && packaging/setup build && $(PY) packaging/build.py && $(PY) -m bench.cni

bench-nri:      ## how long nri-qos keeps a runtime waiting, against a plugin that does nothing, and what its loop costs
	@packaging/setup test && packaging/setup build && $(PY) packaging/build.py && $(PY) -m bench.nri

bench-qos:      ## online latency beside offline work, with and without nri-qos, in the guest
	@packaging/setup e2e && packaging/setup build && $(PY) packaging/build.py && $(PY) -m bench.qos

image:          ## the image's root file system, without a container engine; starts each executable in it (as root)
	@packaging/setup image && packaging/setup build && $(PY) packaging/build.py && packaging/image/assemble

bench-startup:  ## how fast ub-cni starts, against bare Python and Debian's bridge
	@packaging/setup demo && packaging/setup build && $(PY) packaging/build.py && $(PY) -m bench.startup

bench-zerocopy: ## shared memory between two pods of one host, beside TCP over their veth (as root)
	@packaging/setup demo && PYTHONPATH=. packaging/in-namespaces $(PY) -m bench.zerocopy

bench-agent:    ## what ub-agent costs at rest, against its budget
	@packaging/setup test && $(PY) -m bench.agent

drills:         ## upgrades, kills and restarts under 20 pods that come and go, three minutes each (in the guest)
	@packaging/setup e2e && UB_E2E_LONG=1 UB_E2E_DRILL_PODS=$${UB_E2E_DRILL_PODS:-20} UB_E2E_DRILL_SECONDS=$${UB_E2E_DRILL_SECONDS:-180} $(PY) -m e2e -k "drills"

kubernetes:     ## Kubernetes itself, from its Go modules, for tests (once, 10 min)
	@e2e/kubernetes/build

test-apiserver: sidecars ## the chart and its sidecars, with a real API server (needs Go; the first time 20 min, then 1 min)
	@e2e/kubernetes/build etcd kube-apiserver >/dev/null && packaging/setup test && .venv/bin/pytest $(PYTEST_OPTIONS) -m apiserver

sidecars:       ## the CSI sidecars that the chart names, from their Go modules, for tests (once, 8 min)
	@e2e/kubernetes/build-sidecars csi-provisioner csi-resizer csi-attacher csi-snapshotter snapshot-controller >/dev/null

e2e-kubernetes: kubernetes ## a cluster of one node: kubelet in the guest gives pods our devices, volumes and QoS (5 min)
	@packaging/setup e2e && UB_E2E_KUBERNETES=1 $(PY) -m e2e -k kubernetes

e2e-long:       ## tests of the guest that take minutes each: rates, knobs, borrowed memory, volumes of two kernels (30 min)
	@packaging/setup e2e && UB_E2E_LONG=1 $(PY) -m e2e -k "not drills"

guest:          ## what e2e needs and nothing of ours is in: the guest's image, and with Go a newer containerd (once, 5 min)
	@packaging/setup e2e && $(PY) -m e2e image && { nice e2e/install-go-tools containerd containerd-shim-runc-v2 || [ $$? -eq 3 ]; }

e2e:            ## the built executables on a real node: QEMU, containerd, three NUMA nodes
	@packaging/setup e2e && $(PY) -m e2e

.PHONY: sidecars guest test-plain test-links test-volumes e2e-long test-apiserver kubernetes e2e-kubernetes drills docs manifests bench-csi bench-nri bench-qos consistency consistency-short conformance help setup demo test test-kernel test-binary test-chart release image bench-cni bench-startup bench-agent bench-zerocopy lint fmt type proto build e2e
