#include "client/plan_page.h"
int main() { return 0; }
