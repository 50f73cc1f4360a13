"""A TrainJob of Kubeflow Trainer (v1alpha1) with its runtime torch-distributed."""

from __future__ import annotations

from typing import Final

from dragoman.base.errors import ConfigError
from dragoman.cluster.launchers.job import ScheduledJob, quoted

_LONGEST: Final = 63


def kubernetes(job: ScheduledJob) -> str:
    """The manifest. Raises ConfigError if the names of its pods would be too long."""
    _check_name(job)
    # Kubernetes replaces $(...) and reads $$ as a dollar.
    words = [word.replace("$", "$$") for word in job.command(at="")]
    words[3] = "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
    command = quoted(words)
    name = quoted(job.name)  # YAML would read the name `no` or `on` as a boolean
    gpus = f"\n      limits: {{nvidia.com/gpu: {job.gpus}}}" if job.gpus else " {}"
    return f"""\
# For Kubeflow Trainer 2.3 or newer.
# Once:     kubectl create secret generic {job.name} --from-literal=token="$(openssl rand -hex 16)"
#           and a claim named {job.name} to a volume that all pods share (ReadWriteMany).
# Start:    kubectl apply -f {job.name}.yaml
# Again:    kubectl delete -f {job.name}.yaml, then start it: it goes on where it was.
# Watch:    kubectl logs -f -l batch.kubernetes.io/job-completion-index=0,\
jobset.sigs.k8s.io/jobset-name={job.name}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {name}
spec:
  runtimeRef: {{name: torch-distributed}}
  activeDeadlineSeconds: {job.hours * 3600}
  trainer:
    image: {quoted(job.image)}
    numNodes: {job.nodes}
    numProcPerNode: {job.ranks}
    command: {command}
    env:
      - name: DRAGOMAN_JOB_TOKEN
        valueFrom: {{secretKeyRef: {{name: {name}, key: token}}}}
    resourcesPerNode:{gpus}
  runtimePatches:
    - manager: dragoman.io/generate
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        # As in the image: no process runs as root, and the user owns the files in
                        # the volume.
                        securityContext: {{runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000}}
                        # Workers save when the pod is asked to end.
                        terminationGracePeriodSeconds: 180
                        volumes:
                          - name: shared
                            persistentVolumeClaim: {{claimName: {name}}}
                          - name: shm
                            emptyDir: {{medium: Memory, sizeLimit: 2Gi}}
                        containers:
                          - name: node
                            volumeMounts:
                              - {{name: shared, mountPath: {quoted(str(job.folder))}}}
                              - {{name: shm, mountPath: /dev/shm}}
"""


def _check_name(job: ScheduledJob) -> None:
    """JobSet rejects pods with longer names, and the TrainJob would never begin."""
    added = len(f"-node-0-{job.nodes - 1}-abcde")
    if len(job.name) + added > _LONGEST:
        raise ConfigError(
            f"{job.name!r} is too long, as pods are called by it with {added} characters more",
            place="--name",
            remedy=f"use up to {_LONGEST - added} characters",
        )
