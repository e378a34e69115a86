# Starts a Slurm cluster of two nodes, node0 and node1, in network namespaces of this host; its
# files are in FOLDER. Runs `sh -c COMMAND` on node0 and returns its status. Must run as root, in
# namespaces that end with it:
#   unshare --net --uts --mount --pid --fork --mount-proc --kill-child sh slurm.sh FOLDER COMMAND
set -eu
folder=$1
export SLURM_CONF="$folder/slurm.conf"
mkdir -p "$folder/state"
# More processors than any machine has, so that any number of ranks fits.
cat >"$SLURM_CONF" <<END
ClusterName=weft
SlurmctldHost=node0(10.77.0.1)
SlurmUser=root
AuthInfo=socket=/run/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=/run/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
NodeName=node0 NodeAddr=10.77.0.1 CPUs=8
NodeName=node1 NodeAddr=10.77.0.2 CPUs=8
PartitionName=all Nodes=ALL Default=YES
END
(umask 077 && od -An -N64 -tx1 /dev/urandom >"$folder/key")
printf '127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
mount -t tmpfs none /run  # the paths of sockets are short
hostname node0
ip link set lo up
unshare --net --uts sh -euc '
  hostname node1
  until ip link show weft1 >/dev/null 2>&1; do sleep 0.02; done
  ip link set lo up
  ip address add 10.77.0.2/30 dev weft1
  ip link set weft1 up
  exec slurmd -D -N node1' >"$folder/node1.log" 2>&1 &
second=$!
until [ "$(readlink /proc/$second/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
  sleep 0.02
done
ip link add weft0 type veth peer name weft1 netns $second
ip address add 10.77.0.1/30 dev weft0
ip link set weft0 up
# await CONDITION: waits until it holds; shows the log of a daemon that has ended.
await() {
  until eval "$1"; do
    for pid in $daemons; do
      kill -0 "$pid" || { tail -n 20 "$folder"/*.log; exit 1; }
    done
    sleep 0.1
  done
}
munged --foreground --force --key-file="$folder/key" --socket=/run/munge.socket \
  --pid-file="$folder/munged.pid" --seed-file="$folder/seed" >"$folder/munged.log" 2>&1 &
daemons="$second $!"
await '[ -S /run/munge.socket ]'
slurmctld -D >"$folder/slurmctld.log" 2>&1 &
daemons="$daemons $!"
slurmd -D -N node0 >"$folder/node0.log" 2>&1 &
daemons="$daemons $!"
await '[ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ]'
sh -c "$2"
