module flavour

go 1.19
