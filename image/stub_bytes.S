/* The linked stub, as bytes. */
	.section .rodata
	.globl image_stub_start, image_stub_end
	.balign 16
image_stub_start:
	.incbin STUB_PATH
image_stub_end:
	.section .note.GNU-stack, "", @progbits
