"""Files for schedulers; each starts `dragoman join` on every machine.

job          the contents of a generated file, whatever the scheduler
slurm        a script for sbatch
kubernetes   a TrainJob of Kubeflow Trainer
skypilot     a SkyPilot task
"""
