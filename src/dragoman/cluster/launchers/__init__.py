"""Files for the schedulers of the field; each starts `dragoman join` on every machine.

job          what a generated file must know
slurm        a script for sbatch
kubernetes   a TrainJob of Kubeflow Trainer
skypilot     a SkyPilot task
"""
