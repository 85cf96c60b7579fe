"""Images: where they come from, and the views that they are shown in.

Anything that holds images becomes an `ImageSet` or a `Source`. A policy says in which views each
image is shown; their random numbers are a function of the image's index.

transforms     the pixel functions behind the views: pure functions of images and given numbers
draws          the numbers, random or stratified
views          View and Policy; VIEWS and POLICIES by name
batched        all views of a batch in few operations, for a deployed classifier
corruptions    the corruptions of CIFAR-10-C and ImageNet-C, as views
rehearsals     each image in one of them, for fits that hedge against dataset shift
preprocess     from a photograph to the pixels of a network: `Preprocess`
class_names    class names to class numbers
image_set      ImageSet: labelled images that are decoded when they are used
folder         folders of images and lists of files
tables         tables and streams of the library `datasets`
source         arrays, sets, torch datasets, loaders, tables and folders, all read alike
labels         their labels, from a table or the images' own, by the names of the network's classes
origin         where a record comes from, and its images in their order
"""
