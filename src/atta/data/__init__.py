"""Images: where they come from, and the views that they are shown in.

Whatever holds images becomes an `ImageSet` or a `Source`, and a policy says in which views each of them is shown, by numbers
that are a function of the image's index.

transforms     what a view does to pixels: pure functions of images and given numbers
draws          those numbers, random or stratified
views          View, Policy; VIEWS and POLICIES by name
together       all views of a batch in one go, their numbers fixed
corruptions    images made worse on purpose: those of CIFAR-10-C and ImageNet-C
rehearsals     each image in one of them, for fits that hedge against a shift
preprocessing  from a photograph to the pixels of a network: `Preprocess`. Pillow is used here and in `sets`
sets           ImageSet: labelled images that decode when asked for
layouts        how datasets lie on disk, a function each. The one place where the library `datasets` is used
datasets       datasets by name: `load("cifar10", "test")`
sources        arrays, sets, torch datasets, loaders, tables and folders, all read alike
parts          some of the images of a source
labels         their labels, from a table or brought along, by the names of the network's classes
again          the images of a record, found again in their order
"""
