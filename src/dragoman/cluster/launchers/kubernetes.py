"""A TrainJob of Kubeflow Trainer (v1alpha1) with its runtime torch-distributed."""

from __future__ import annotations

import json

from dragoman.cluster.launchers.job import ScheduledJob


def kubernetes(job: ScheduledJob) -> str:
    """The manifest. JSON's strings and lists are YAML's."""
    # Kubernetes fills in $(...) and takes $$ for a dollar.
    words = [word.replace("$", "$$") for word in job.command(at="")]
    words[3] = "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
    command = json.dumps(words)
    name = json.dumps(job.name)  # `no` and `on` are names too
    gpus = f"\n      limits: {{nvidia.com/gpu: {job.gpus}}}" if job.gpus else " {}"
    return f"""\
# Once:     kubectl create secret generic {job.name} --from-literal=token="$(openssl rand -hex 16)"
#           and a claim named {job.name} to a volume that all pods share (ReadWriteMany).
# Start:    kubectl apply -f {job.name}.yaml
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
    image: {json.dumps(job.image)}
    numNodes: {job.nodes}
    numProcPerNode: {job.ranks}
    command: {command}
    env:
      - name: DRAGOMAN_TOKEN
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
                        # As in the image: nobody is root, and files in the volume are theirs.
                        securityContext: {{runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000}}
                        # Workers save when they are asked to end.
                        terminationGracePeriodSeconds: 180
                        volumes:
                          - name: shared
                            persistentVolumeClaim: {{claimName: {name}}}
                          - name: shm
                            emptyDir: {{medium: Memory, sizeLimit: 2Gi}}
                        containers:
                          - name: node
                            volumeMounts:
                              - {{name: shared, mountPath: {json.dumps(str(job.folder))}}}
                              - {{name: shm, mountPath: /dev/shm}}
"""
