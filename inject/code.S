/* The flat executor, embedded. */
	.section .rodata
	.globl inject_code_start, inject_code_end
	.balign 16
inject_code_start:
	.incbin CODE_PATH
inject_code_end:
	.section .note.GNU-stack, "", @progbits
