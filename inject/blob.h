/* The injected code as it is built into scip: position independent, entered at its first byte. */
#ifndef INJECT_BLOB_H
#define INJECT_BLOB_H

extern const unsigned char inject_blob[], inject_blob_end[];

#endif
