"""Print each composition's largest difference from its reference."""

import argparse

from .comparisons import COMPARISONS, wine


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    x, label = wine()
    print('| method | compared | with | maximum difference |')
    print('|---|---|---|---:|')
    for each in COMPARISONS:
        print(f'| {each.method} | {each.what} | {each.reference} | '
              f'{each.difference(x, label):.1e} |')


if __name__ == '__main__':
    main()
