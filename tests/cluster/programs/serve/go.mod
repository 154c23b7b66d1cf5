module serve

go 1.19
