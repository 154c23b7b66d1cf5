/* Includes the flat binary in scip. */
	.section .rodata
	.globl inject_blob, inject_blob_end
	.balign 16
inject_blob:
	.incbin INJECT_BLOB
inject_blob_end:
	.section .note.GNU-stack,"",@progbits
