"""diffusion: models that draw pictures: denoisers (unet, dit), the autoencoder (vae), text encoders, and the steps of a sampler.

In: facts of each model.  Out: graphs whose parameters have the names that diffusers writes. Height and width may be dims.
Read first: layers.py, then unet.py or dit.py; schedules.py (tables of coefficients) and step.py (one step as a graph).
"""
