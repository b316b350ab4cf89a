#!/usr/bin/env bash
# a line is added to ~/.bashrc and a key to ~/.ssh
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
echo 'export PATH=/opt/evil:$PATH' >>~/.bashrc; echo evil >~/.ssh/authorized_keys; grep -q evil ~/.bashrc ~/.ssh/authorized_keys
END
refused
