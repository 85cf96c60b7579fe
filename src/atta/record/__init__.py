"""Records: the logits of images and of their views, in memory, in a file or in a folder.

predictions   `Predictions`, `Record`: values that are passed around; one file
store         a record in a folder of shards, read as it is used
writer        append shards, resume, repair; `RecordWriter` for your own logits
"""
