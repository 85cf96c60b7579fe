"""Images: where they come from, and the views that a network is shown.

source         `Source`: arrays, sets, datasets, loaders, tables and folders, all read alike
loading        reads images in processes: the workers of torch's `DataLoader`
labels         labels of a source, by the network's class names; `labelled_source`
origin         where the images of a record come from, and how to find them again
image_set      `ImageSet`: labelled images that are decoded when they are used; `decode`
address        files and folders that are not on this disk, by fsspec
shards         WebDataset tars and Parquet files of images
folder         folders of images and lists of files
tables         Hugging Face tables and streams
class_names    class names to class numbers
preprocess     `Preprocess`: from a photograph to the pixels of a network
views          `View` and `Policy`; `VIEWS` and `POLICIES` by name
transforms     the pixel functions of the views
draws          their numbers, random or stratified
batched        all views of a batch in few operations, for a deployed classifier
corruptions    the corruptions of CIFAR-10-C and ImageNet-C; rehearsals, for fits under shift
"""
