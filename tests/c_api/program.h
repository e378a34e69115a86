/* What a C program does with weft. */
#ifdef __cplusplus
extern "C" {
#endif
/* The sum of 1 and 2, by the model "pair" of the library; below 0 after an error. */
float sum_by_pair(const char* library);
#ifdef __cplusplus
}
#endif
