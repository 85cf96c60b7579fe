"""Images: where they come from, and the views that a network is shown.

source         `Source`: arrays, sets, datasets, loaders, tables and folders, all read alike
items          pixels and labels of what datasets and loaders yield, and their checks
loading        reads images in processes: the workers of torch's `DataLoader`
labels         labels of a source, by the network's class names; `labelled_source`
image_set      `ImageSet`: labelled images that are decoded when they are used; `decode`
folder         folders and files, here or at an address; `Origin`, the images of a record
tables         Hugging Face tables and streams; WebDataset and Parquet shards
segmentation   images with masks; from the answer to a view back to the image
preprocess     `Preprocess`: from a photograph to the pixels of a network
photographs    views of the photograph, which `Preprocess` puts on a sheet
views          `View` and `Policy`; `VIEWS` and `POLICIES` by name
transforms     the pixel functions of the views
draws          their numbers, random or stratified
batched        all views of a batch in few operations, for a deployed classifier
corruptions    the corruptions of CIFAR-10-C and ImageNet-C; rehearsals, for fits under shift
"""
