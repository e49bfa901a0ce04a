# The stages' maps have 96, 48 and 24 px; FCA pools them to the 32, 16 and 8
# of its fixed bases, as FcaNet does with maps of another size. A reading.
_base_ = ['./resnet164_stepnet_stl10.py']

model = dict(backbone=dict(attention=dict(type='FCA')))
