"""Images: where they come from, and the views that they are shown in.

Whatever holds images becomes an `ImageSet` or a `Source`, and a policy says in which views each of them is shown, by numbers
that are a function of the image's index.

transforms     the pixel functions behind the views: pure functions of images and given numbers
draws          the numbers, random or stratified
views          View and Policy; VIEWS and POLICIES by name
batched        all views of a batch in few operations, for a deployed classifier
corruptions    the corruptions of CIFAR-10-C and ImageNet-C, as views
rehearsals     each image in one of them, for fits that hedge against dataset shift
preprocess     from a photograph to the pixels of a network: `Preprocess`
class_names    class names to class numbers
sets           ImageSet: labelled images that decode when asked for
layouts        how datasets lie on disk, a function each. The one place where the library `datasets` is used
datasets       datasets by name: `load("cifar10", "test")`
sources        arrays, sets, torch datasets, loaders, tables and folders, all read alike
parts          some of the images of a source
labels         their labels, from a table or brought along, by the names of the network's classes
again          the images of a record, found again in their order
"""
