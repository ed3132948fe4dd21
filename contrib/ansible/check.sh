#!/usr/bin/env bash
# Runs the role against two nodes of this machine: fresh, then as an upgrade while a model is served.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --release --quiet --locked -p sinew
venv=$target/ansible
[ -x "$venv/bin/ansible-playbook" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install -q 'ansible-core>=2.15'; }
work=$(mktemp -d)
stop() {
    for name in one two; do
        [ ! -x "$work/$name/sinew" ] || "$work/$name/sinew" stop --node --data-dir "$work/$name/data" || :
    done
    # A node that was told to stop saves what it has first.
    rm -rf "$work" 2>/dev/null || { sleep 2; rm -rf "$work"; }
}
trap stop EXIT
cat >"$work/inventory.yml" <<INVENTORY
sinew:
  vars:
    ansible_connection: local
    ansible_python_interpreter: $venv/bin/python
    sinew_supervisor: none
    sinew_binary: $work/new
    sinew_path: $work/{{ inventory_hostname }}/sinew
    sinew_data_dir: $work/{{ inventory_hostname }}/data
    sinew_options: [--api, "127.0.0.1:0", --listen, "127.0.0.1:0", --announce, always, --threads, "1"]
  hosts:
    one: {}
    two: {}
INVENTORY
mkdir "$work/one" "$work/two"
play() {
    ANSIBLE_LOCALHOST_WARNING=0 ANSIBLE_NOCOLOR=1 "$venv/bin/ansible-playbook" -i "$work/inventory.yml" contrib/ansible/sinew.yml
}
one() { "$work/one/sinew" "$@" --data-dir "$work/one/data"; }
live() { one nodes --json | grep -c '"state": "live"'; }

cp "$target/release/sinew" "$work/new"
play
[ "$(live)" = 2 ] || { echo 'the nodes are not one cluster'; exit 1; }
one serve demo-model/sinew-demo.gguf --nodes 2 --copies 2
# The other machine must have the file, so that the model can do without the first one.
for _ in $(seq 60); do [ ! -s "$work/two/data/models/sinew-demo.gguf" ] || break; sleep 1; done
before=$(one events | wc -l)
# Another binary, as far as Ansible can see.
printf 'newer' >>"$work/new"
play | tee "$work/upgrade.log"
! grep -q 'cannot be emptied' "$work/upgrade.log" || { echo 'a node was not drained'; exit 1; }
one events --json | grep -q model_moved || { echo 'nothing has moved'; exit 1; }
[ "$(live)" = 2 ] || { echo 'the upgrade has lost a node'; exit 1; }
one run sinew-demo 'Who are you?' </dev/null
echo "ansible: a fresh fleet and an upgrade; events since: $(one events | tail -n +$((before + 1)) | wc -l)"
