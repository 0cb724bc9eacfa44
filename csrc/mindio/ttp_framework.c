/* MindSpore loads framework_ttp/libttp_framework.so before libttp_c_api.so, and uses nothing of
 * it. */
__attribute__((visibility("default"))) const char taskd_ttp_framework[] = TASKD_VERSION;
